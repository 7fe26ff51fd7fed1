"""Training steps on the CPU: the same GPT-2, data and batch as nanoGPT and transformers.Trainer, one step at a time.

    python -m benchmarks.train_cpu --nanogpt PATH [--quick]

nanoGPT as shipped (fp32, eager, AdamW unfused) and its best variant by hand (compiled, bf16, fused); Trainer with its
defaults and with its best settings for the same arithmetic (bf16, fused, compiled). Every side is warmed up, then the
sides take turns; evaluation, checkpoints and start-up are measured elsewhere.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import Trainer as HuggingFaceTrainer
from transformers import TrainingArguments

from benchmarks.figures import Figure, compare, interleave, record
from benchmarks.runs.nanogpt import load_nanogpt
from stages.formats.section import read_section
from stages.formats.tokens import TokenStore
from stages.train.batches import Batch, read_rows, rows_of_step
from stages.train.loss import CausalLoss
from stages.train.model import build_model
from stages.train.optimizer import build_optimizers
from stages.train.packing import build_packing
from stages.train.params import TrainParams
from stages.train.worker import repeat_bits

Step = Callable[[], None]


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    params = read_section("train", TrainParams)
    params = params.model_copy(
        update={
            "optimizer": params.optimizer.model_copy(update={"name": "adamw"}),
            "model": params.model | {"activation_function": "gelu"},  # nanoGPT knows no other
        }
    )
    store = TokenStore(Path("data/tokens/train"))
    index = build_packing(store, params.sequence_length, params.packing)
    rows = rows_of_step(0, 0, params.global_batch_size, index.rows)
    batch = read_rows(store, index, rows, params.sequence_length)
    inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)

    steps = {"ours": our_step(params, store, batch)}
    steps |= trainer_steps(params, store, inputs, targets)
    if arguments.nanogpt:
        steps |= nanogpt_steps(arguments.nanogpt, params, store, inputs, targets)
    else:
        print("nanoGPT is left out: no --nanogpt PATH")
    for step in steps.values():
        for _ in range(2):
            step()
    sides = {name: timed(step, inputs.numel()) for name, step in steps.items()}
    record("train_cpu", figures(interleave(sides, 3 if arguments.quick else 15)))


def timed(step: Step, tokens: int) -> Callable[[], float]:
    """A measurement in tokens per second."""

    def measure() -> float:
        began = time.perf_counter()
        step()
        return tokens / (time.perf_counter() - began)

    return measure


def figures(speeds: dict[str, list[float]]) -> list[Figure]:
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


def our_step(params: TrainParams, store: TokenStore, batch: Batch) -> Step:
    """What the training loop does in a step: compiled as by default for a run of this length, the same bits each time.

    The peers promise no such bits and are measured without the setting that costs some speed for them.
    """
    loss_of = CausalLoss(build_model(params, store.manifest), params)
    optimizers = build_optimizers(loss_of, params.optimizer)
    compiled = cast(nn.Module, torch.compile(loss_of, dynamic=False))
    tensors = [torch.from_numpy(part) for part in (batch.inputs, batch.targets, batch.positions)]

    def step() -> None:
        repeat_bits(tensors[0].device)
        torch.autograd.backward(compiled(*tensors) / tensors[0].numel())
        torch.nn.utils.clip_grad_norm_(loss_of.parameters(), params.max_gradient_norm)
        optimizers.step(0.1)
        torch.use_deterministic_algorithms(False)

    return step


def nanogpt_steps(
    folder: Path, params: TrainParams, store: TokenStore, inputs: torch.Tensor, targets: torch.Tensor
) -> dict[str, Step]:
    """nanoGPT's own model and optimizer in its own loop's order."""

    def build(best: bool) -> Step:
        model = load_nanogpt(folder, params, store.manifest.vocab_size)
        optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu")
        if best:
            optimizer = torch.optim.AdamW(optimizer.param_groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
        forward = torch.compile(model, dynamic=False) if best else model

        def step() -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=best):
                _, loss = forward(inputs, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    return {"nanoGPT as shipped": build(best=False), "nanoGPT, compiled, bf16, fused AdamW": build(best=True)}


def trainer_steps(
    params: TrainParams, store: TokenStore, inputs: torch.Tensor, targets: torch.Tensor
) -> dict[str, Step]:
    """transformers.Trainer's own training_step, and the optimizer as it builds it."""
    batch = {"input_ids": inputs, "labels": targets, "shift_labels": targets}

    def build(name: str, **settings: Any) -> Step:
        folder = tempfile.mkdtemp()
        arguments = TrainingArguments(output_dir=folder, use_cpu=True, report_to=[], **settings)
        model = build_model(params, store.manifest)
        trainer = HuggingFaceTrainer(model=model, args=arguments)
        trainer.current_gradient_accumulation_steps = 1
        optimizer = trainer.create_optimizer()
        prepared = trainer.accelerator.prepare_model(model)
        wrapped = cast(nn.Module, torch.compile(prepared, dynamic=False)) if settings.get("bf16") else prepared

        def step() -> None:
            trainer.training_step(wrapped, dict(batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    best = build("best", bf16=True, optim="adamw_torch_fused")
    return {"Trainer, defaults": build("defaults"), "Trainer, compiled, bf16, fused AdamW": best}


if __name__ == "__main__":
    main()
