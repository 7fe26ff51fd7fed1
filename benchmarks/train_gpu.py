"""GPT-2 124M on one GPU: tokens per second, model-FLOPs utilisation and memory against nanoGPT, in the same lease.

    python -m benchmarks.train_gpu --nanogpt PATH [--micro-batch 32] [--quick]

Sequences of 1024 tokens, bf16, AdamW, gradients accumulated to `ACCUMULATION` micro-batches a step; both sides
compiled, on the same random tokens, taking turns. Needs torch, transformers and accelerate alone. Without a GPU it says
so and records nothing; `--try-on-cpu` runs a tiny model to see that all of it works, and records nothing either.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from benchmarks.measurements import Measurement, compare, interleave, record
from benchmarks.runs.nanogpt import load_nanogpt
from stages.formats.tokens import Manifest
from stages.runtime.section import read_params_file
from stages.train.model.build import build_model, flops_per_token, padded_vocabulary
from stages.train.model.loss import CausalLoss
from stages.train.monitoring.throughput import peak_flops
from stages.train.optim.optimizers import build_optimizers
from stages.train.params import TrainParams

VOCABULARY = 50_257
ACCUMULATION = 4

GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
TINY = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64}

Step = Callable[[], None]


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--micro-batch", type=int, default=32, help="sequences of a forward pass")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--try-on-cpu", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.try_on_cpu:
        print("no GPU here: not measured")
        return
    device = torch.device("cpu" if arguments.try_on_cpu else "cuda")
    params = gpt2_params(TINY if arguments.try_on_cpu else GPT2)
    length = params.sequence_length
    batches = [
        torch.randint(VOCABULARY, (arguments.micro_batch, length + 1), device=device) for _ in range(ACCUMULATION)
    ]
    sides = {"ours": our_step(params, device, batches)}
    if arguments.nanogpt:
        sides["nanoGPT"] = nanogpt_step(arguments.nanogpt, params, device, batches)
    else:
        print("nanoGPT is left out: no --nanogpt PATH")
    tokens = ACCUMULATION * arguments.micro_batch * length
    memory = {name: warmed_up_bytes(step, device) for name, step in sides.items()}
    runs = 3 if arguments.quick or arguments.try_on_cpu else 20
    speeds = interleave({name: timed(step, tokens, device) for name, step in sides.items()}, runs)
    if arguments.try_on_cpu:
        print({name: f"{max(speed):,.0f} tokens/s" for name, speed in speeds.items()}, "on the CPU: not recorded")
        return
    record("train_gpu", figures(params, speeds, memory, device), quick=arguments.quick)


def gpt2_params(model: dict[str, Any]) -> TrainParams:
    """The project's recipe with AdamW and GPT-2's shape."""
    section = read_params_file(Path("params.yaml"))["train"]
    off = {"activation_function": "gelu_pytorch_tanh", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    section |= {"model": model | off, "sequence_length": model["n_positions"], "precision": "bf16"}
    section["optimizer"] |= {"name": "adamw", "adamw_learning_rate": 6e-4}
    return TrainParams.model_validate(section)


def our_step(params: TrainParams, device: torch.device, batches: list[torch.Tensor]) -> Step:
    """What the training loop does in a step."""
    loss_of = CausalLoss(build_model(params, Manifest("uint16", VOCABULARY, 0, "", "", ())), params).to(device)
    optimizers = build_optimizers(loss_of.model, params.optimizer, params.precision)
    compiled = cast(nn.Module, torch.compile(loss_of, dynamic=False))
    positions = torch.arange(params.sequence_length, device=device).expand(len(batches[0]), -1)
    count = sum(batch[:, 1:].numel() for batch in batches)

    def step() -> None:
        for batch in batches:
            torch.autograd.backward(compiled(batch[:, :-1], batch[:, 1:], positions).sum() / count)
        torch.nn.utils.clip_grad_norm_(loss_of.parameters(), params.max_gradient_norm)
        optimizers.step(0.1)

    return step


def nanogpt_step(folder: Path, params: TrainParams, device: torch.device, batches: list[torch.Tensor]) -> Step:
    """nanoGPT's own model and optimizer, in its own loop's order, with the settings that it ships for a GPU."""
    model = load_nanogpt(folder, params, padded_vocabulary(VOCABULARY)).to(device)
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), device.type)
    compiled = cast(nn.Module, torch.compile(model))
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True

    def step() -> None:
        for batch in batches:
            with torch.autocast(device.type, dtype=torch.bfloat16):
                _, loss = compiled(batch[:, :-1], batch[:, 1:].contiguous())
            (loss / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def warmed_up_bytes(step: Step, device: torch.device) -> int:
    """The most memory that a side's steps take; compiles it."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    for _ in range(5):
        step()
    return torch.cuda.max_memory_allocated(device) - before if on_gpu else 0


def timed(step: Step, tokens: int, device: torch.device) -> Callable[[], float]:
    """A measurement in tokens per second, the device's queue emptied before and after."""
    wait: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def measure() -> float:
        wait()
        began = time.perf_counter()
        step()
        wait()
        return tokens / (time.perf_counter() - began)

    return measure


def figures(
    params: TrainParams, speeds: dict[str, list[float]], memory: dict[str, int], device: torch.device
) -> list[Measurement]:
    """Speed, utilisation and memory, compared with nanoGPT where it was given."""
    with torch.device("meta"):
        model = build_model(params, Manifest("uint16", VOCABULARY, 0, "", "", ()))
    peak = peak_flops(device)
    share = flops_per_token(model, params.sequence_length) / peak * 100 if peak else None
    peer = speeds.get("nanoGPT")
    name = "nanoGPT, compiled, bf16, fused AdamW" if peer else ""
    libraries, accelerator = ["torch", "transformers"], torch.cuda.get_device_name(device)
    own = speeds["ours"]

    def figure(what: str, ours: list[float], other: list[float] | None, unit: str, higher: bool) -> Measurement:
        return compare(
            f"GPT-2 124M, sequences of 1024: {what}",
            ours,
            other,
            peer_name=name,
            unit=unit,
            higher_is_better=higher,
            libraries=libraries,
            accelerator=accelerator,
        )

    own_share, peer_share = ([speed * share for speed in side or []] if share else [] for side in (own, peer))
    utilisation = [figure("MFU", own_share, peer_share or None, "%", True)] if share else []
    return [
        figure("speed", own, peer, "tokens/s", True),
        *utilisation,
        figure("memory", [memory["ours"] / 2**30], [memory["nanoGPT"] / 2**30] if peer else None, "GiB", False),
    ]


if __name__ == "__main__":
    main()
