"""Training steps on the CPU: the same GPT-2, data and batch as nanoGPT and transformers.Trainer, one step at a time.

    python -m benchmarks.train_cpu --nanogpt PATH [--quick]

nanoGPT as shipped (fp32, eager, AdamW unfused) and its best variant by hand (compiled, bf16, fused); Trainer with its
defaults and with its best settings for the same arithmetic (bf16, fused, compiled). Each side lives in a process of its
own, ours in the environment that our launcher gives its workers, the peers in the user's, their best variants once more
in our launcher's. Every side is warmed up, then they take turns of `STEPS` steps; evaluation, checkpoints and start-up
are measured elsewhere.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import nn
from transformers import Trainer as HuggingFaceTrainer
from transformers import TrainingArguments

from benchmarks.measurements import Measurement, compare, interleave, record
from benchmarks.runs.nanogpt import load_nanogpt
from stages.formats.tokens import TokenStore
from stages.runtime.section import read_section
from stages.train.data.batches import Rows, read_rows, rows_of_step
from stages.train.data.packing import build_packing
from stages.train.distributed.compile import should_compile
from stages.train.launch.launcher import LaunchConfig, environment
from stages.train.model.build import build_model, flops_per_token
from stages.train.model.loss import CausalLoss
from stages.train.model.precision import resolve_precision
from stages.train.optim.optimizer import build_optimizers
from stages.train.params import TrainParams
from stages.train.worker import repeat_bits

Step = Callable[[], None]

STEPS = 4
"""Of a turn: a training loop finds its caches warm and its threads awake."""

NANOGPT = ("nanoGPT as shipped", "nanoGPT, compiled, bf16, fused AdamW")
TRAINER = ("Trainer, defaults", "Trainer, compiled, bf16, fused AdamW")
LAUNCHED = ", in our launcher's environment"


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve_steps(arguments.side, arguments.nanogpt)
        return
    if not arguments.nanogpt:
        print("nanoGPT is left out: no --nanogpt PATH")
    launched = environment(LaunchConfig(Path("launch/cpu.yaml"), processes=1, machines=1, on_cpu=True, sharded=False))
    sides = {"ours": Side("ours", arguments.nanogpt, launched)}
    for shipped, best in [TRAINER, *([NANOGPT] if arguments.nanogpt else [])]:
        sides[shipped] = Side(shipped, arguments.nanogpt, os.environ)
        sides[best] = Side(best, arguments.nanogpt, os.environ)
        sides[best + LAUNCHED] = Side(best, arguments.nanogpt, launched)
    try:
        speeds = interleave({name: side.measure for name, side in sides.items()}, 3 if arguments.quick else 15)
    finally:
        for side in sides.values():
            side.end()
    record("train_cpu", figures(speeds))


class Side:
    """One side in a process of its own, warmed up; each measurement asks it for a turn."""

    def __init__(self, name: str, nanogpt: Path | None, variables: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "benchmarks.train_cpu", "--side", name]
        command += ["--nanogpt", str(nanogpt)] if nanogpt else []
        self.process = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.measure()

    def measure(self) -> float:
        """Tokens per second of one turn."""
        cast(IO[str], self.process.stdin).write("\n")
        return float(cast(IO[str], self.process.stdout).readline())

    def end(self) -> None:
        """Let the process come to its end."""
        cast(IO[str], self.process.stdin).close()
        self.process.wait()


def serve_steps(name: str, nanogpt: Path | None) -> None:
    """Take `STEPS` steps for each line that comes and answer with their tokens per second."""
    params = read_section("train", TrainParams)
    params = params.model_copy(
        update={
            "optimizer": params.optimizer.model_copy(update={"name": "adamw"}),
            "model": params.model | {"activation_function": "gelu"},  # nanoGPT knows no other
        }
    )
    params = resolve_precision(params, "cpu")
    store = TokenStore(Path("data/tokens/train"))
    index = build_packing(store, params.sequence_length, params.packing)
    rows = rows_of_step(0, 0, params.global_batch_size, index.rows)
    batch = read_rows(store, index, rows, params.sequence_length)
    with redirect_stdout(sys.stderr):
        if name == "ours":
            step = our_step(params, store, batch)
        elif name in TRAINER:
            step = trainer_step(params, store, batch, best=name != TRAINER[0])
        else:
            step = nanogpt_step(cast(Path, nanogpt), params, store, batch, best=name != NANOGPT[0])
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        print(STEPS * batch.inputs.size / (time.perf_counter() - began), flush=True)


def figures(speeds: dict[str, list[float]]) -> list[Measurement]:
    """Ours beside each peer."""
    return [
        compare(
            "AdamW steps of the default model on the CPU",
            speeds["ours"],
            peer,
            peer_name=name,
            unit="tokens/s",
            higher_is_better=True,
            libraries=["torch", "transformers", "accelerate"],
        )
        for name, peer in speeds.items()
        if name != "ours"
    ]


def our_step(params: TrainParams, store: TokenStore, batch: Rows) -> Step:
    """What the training loop does in a step, with the precision and compilation that it takes by default on this CPU.

    It gives the same bits each time. The peers promise none and are measured without the
    setting that costs some speed for them.
    """
    loss_of = CausalLoss(build_model(params, store.manifest), params)
    optimizers = build_optimizers(loss_of, params)
    inputs, targets, positions = map(torch.from_numpy, (batch.inputs, batch.targets, batch.positions))
    flops = flops_per_token(loss_of.model, params.sequence_length)
    wanted = should_compile(params, flops, inputs.device)
    compiled = cast(nn.Module, torch.compile(loss_of, dynamic=False)) if wanted else loss_of
    repeat_bits(inputs.device)

    def step() -> None:
        torch.autograd.backward(compiled(inputs, targets, positions) / inputs.numel())
        torch.nn.utils.clip_grad_norm_(loss_of.parameters(), params.max_gradient_norm)
        optimizers.step(0.1)

    return step


def nanogpt_step(folder: Path, params: TrainParams, store: TokenStore, batch: Rows, best: bool) -> Step:
    """nanoGPT's own model and optimizer in its own loop's order."""
    model = load_nanogpt(folder, params, store.manifest.vocab_size)
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu")
    if best:
        optimizer = torch.optim.AdamW(optimizer.param_groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    forward: Any = torch.compile(model, dynamic=False) if best else model
    inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=best):
            _, loss = forward(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def trainer_step(params: TrainParams, store: TokenStore, batch: Rows, best: bool) -> Step:
    """transformers.Trainer's own training_step, and the optimizer as it builds it."""
    targets = torch.from_numpy(batch.targets)
    values = {"input_ids": torch.from_numpy(batch.inputs), "labels": targets, "shift_labels": targets}
    settings: dict[str, Any] = {"bf16": True, "optim": "adamw_torch_fused"} if best else {}
    arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], **settings)
    model = build_model(params, store.manifest)
    trainer = HuggingFaceTrainer(model=model, args=arguments)
    trainer.current_gradient_accumulation_steps = 1
    optimizer = trainer.create_optimizer()
    prepared = trainer.accelerator.prepare_model(model)
    wrapped = cast(nn.Module, torch.compile(prepared, dynamic=False)) if best else prepared

    def step() -> None:
        trainer.training_step(wrapped, dict(values))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


if __name__ == "__main__":
    main()
