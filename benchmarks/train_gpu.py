"""GPT-2 124M on one GPU: tokens per second, model-FLOPs utilization and memory against nanoGPT, in the same lease.

    python -m benchmarks.train_gpu --nanogpt PATH [--micro-batch 32] [--deterministic] [--quick]

Sequences of 1024 tokens, bf16, AdamW, `ACCUMULATION` micro-batches a step; both sides compiled, on the same random
tokens, taking turns. Ours is the product's own `Trainer.step`, set up as a worker sets it up, on micro-batches that are
ready. Without --micro-batch the size is what the product's own trials find. Without a GPU it says so and records
nothing; `--try-on-cpu` takes the same steps with a tiny model and a nominal peak, prints the figures and records
nothing either; `--eager` leaves compilation out.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measurements import ROOT, Measurement, compare, interleave, record
from benchmarks.runs.nanogpt import nanogpt_step
from stages.formats.tokens import STORE_MANIFEST, TOKENS, TRAIN, Manifest, TokenStore
from stages.runtime.launch import LaunchConfig, environment
from stages.runtime.section import read_params_file, read_section
from stages.tokenize.encode import write_token_shard
from stages.train.compute.data.batches import MicroBatch
from stages.train.compute.hardware import COMPILE, MICRO_BATCH
from stages.train.compute.model.build import padded_vocabulary
from stages.train.compute.setup import build_trainer
from stages.train.compute.step import Trainer
from stages.train.monitoring.params import MonitoringParams
from stages.train.monitoring.throughput import peak_flops
from stages.train.params import TrainParams
from stages.train.worker import join

VOCABULARY = 50_257
ACCUMULATION = 4

PLAIN: dict[str, Any] = {"model_type": "gpt2", "activation_function": "gelu_pytorch_tanh"}
PLAIN |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

GPT2 = PLAIN | {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
TINY = PLAIN | {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64}

NOMINAL_PEAK = 1e12
"""FLOP/s that `--try-on-cpu` takes for the CPU's peak, so that the utilization is computed too."""

WARM_UP_STEPS = 5

Step = Callable[[], None]


@dataclass(frozen=True)
class Side:
    """One side, warmed up."""

    step: Step
    memory_bytes: int
    """The most that its steps have taken on the GPU; 0 on a CPU."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and record."""
    parser = gpu_parser(__doc__)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--micro-batch", type=int, help="sequences of a forward pass")
    parser.add_argument("--deterministic", action="store_true", help="sums of a fixed order; needs --micro-batch")
    parser.add_argument("--eager", action="store_true")
    given = parser.parse_args(arguments)
    if not is_measured(given):
        return
    device = torch.device("cpu" if given.try_on_cpu else "cuda")
    params = gpt2_params(TINY if given.try_on_cpu else GPT2, given.micro_batch if given.deterministic else None)
    if given.micro_batch:
        os.environ[MICRO_BATCH] = str(given.micro_batch)
    nanogpt = given.nanogpt and given.nanogpt.resolve()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        trainer = product_trainer(params, device, compiled=not given.eager)
        size = trainer.micro_batch_size
        batches = list(trainer.micro_batches(range(1)))[:ACCUMULATION]
    sides = {"ours": warmed_up(our_step(trainer, batches), device)}
    if nanogpt:
        words, rows = padded_vocabulary(VOCABULARY), [batch.rows for batch in batches]
        how = {"bf16": True, "fused": False, "compiled": not given.eager}
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        sides["nanoGPT"] = warmed_up(nanogpt_step(nanogpt, params, words, rows, device, **how), device)
    else:
        print("nanoGPT is left out: no --nanogpt PATH")
    tokens = sum(batch.rows.inputs.size for batch in batches)
    runs = 3 if given.quick or given.try_on_cpu else 20
    speeds = interleave({name: timed(side.step, tokens, device) for name, side in sides.items()}, runs)
    peak = NOMINAL_PEAK if given.try_on_cpu else peak_flops(trainer.accelerator.device, params.precision)
    share = trainer.flops_per_token / peak * 100 if peak else None
    subject = f"GPT-2 124M, micro-batches of {size} x {params.sequence_length} tokens"
    found = figures(subject, speeds, {name: side.memory_bytes for name, side in sides.items()}, share, device)
    for figure in found:
        print(f"{figure.figure}: {figure.ours:,.1f} {figure.unit}")
    if given.try_on_cpu:
        print(f"a tiny model on the CPU, its peak taken to be {NOMINAL_PEAK:.0e} FLOP/s: not recorded")
        return
    record("train_gpu", found, quick=given.quick)


def gpu_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that benchmarks on a GPU share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--try-on-cpu", action="store_true")
    return parser


def is_measured(given: argparse.Namespace) -> bool:
    """Whether there is a GPU to measure, or the CPU is to be tried; else says so."""
    if torch.cuda.is_available() or given.try_on_cpu:
        return True
    print("no GPU here: not measured")
    return False


def gpt2_params(model: dict[str, Any], deterministic_micro_batch_size: int | None) -> TrainParams:
    """The project's recipe with AdamW and GPT-2's shape; a global batch that no micro-batch exceeds."""
    section = read_params_file(Path("params.yaml"))["train"]
    section |= {"model": model, "sequence_length": model["n_positions"], "precision": "bf16"}
    section["global_batch_size"] = 256
    section["deterministic_micro_batch_size"] = deterministic_micro_batch_size
    section["optimizer"] |= {"name": "adamw", "adamw_learning_rate": 6e-4}
    return TrainParams.model_validate(section)


def product_trainer(params: TrainParams, device: torch.device, compiled: bool) -> Trainer:
    """What a worker trains with, over random tokens in the working directory, in a worker's environment."""
    launch = LaunchConfig(Path("one"), processes=1, machines=1, on_cpu=device.type == "cpu", sharded=False)
    for name, value in environment(launch).items():
        os.environ.setdefault(name, value)
    write_random_tokens(TOKENS / TRAIN, 2 * params.global_batch_size * params.sequence_length)
    os.environ[COMPILE] = "on" if compiled else "off"
    accelerator = join(read_section("monitoring", MonitoringParams, ROOT / "params.yaml"))
    return build_trainer(params, accelerator, TokenStore(TOKENS / TRAIN))


def write_random_tokens(folder: Path, tokens: int) -> None:
    """A store of one document."""
    folder.mkdir(parents=True)
    ids = np.random.default_rng(0).integers(VOCABULARY, size=tokens, dtype=np.uint32)
    info = {"id": "0", "source": "random", "path": "0", "bytes": 4 * tokens}
    shard = write_token_shard(folder, "s000", ids, np.array([tokens], dtype=np.int64), [info], 0, "uint16")
    manifest = Manifest("uint16", VOCABULARY, 0, "", "tokenizers", (shard,))
    (folder / STORE_MANIFEST).write_text(manifest.to_json(), encoding="utf-8")


def our_step(trainer: Trainer, batches: list[MicroBatch]) -> Step:
    """The product's own step, at a tenth of the peak rate."""
    ready = [MicroBatch(batch.rows, 0, batch.first_row, batch is batches[-1]) for batch in batches]
    number = trainer.params.schedule.warmup_steps // 10

    def step() -> None:
        trainer.step(number, ready)

    return step


def warmed_up(step: Step, device: torch.device) -> Side:
    """Take a few steps, which compiles what is compiled, and see what memory they take."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    for _ in range(WARM_UP_STEPS):
        step()
    return Side(step, torch.cuda.max_memory_allocated(device) - before if on_gpu else 0)


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
    subject: str, speeds: dict[str, list[float]], memory: dict[str, int], share: float | None, device: torch.device
) -> list[Measurement]:
    """Speed, utilization and memory of the `subject`, compared with nanoGPT where it was given.

    `share` is the utilization in percent that a token per second means; None where the GPU's peak is not known.
    """
    peer = speeds.get("nanoGPT")
    name = "nanoGPT, compiled, bf16, fused AdamW" if peer else ""
    accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    own = speeds["ours"]

    def figure(what: str, ours: list[float], other: list[float] | None, unit: str, higher: bool) -> Measurement:
        words = {"peer_name": name, "unit": unit, "accelerator": accelerator}
        libraries = ["torch", "transformers"]
        return compare(f"{subject}: {what}", ours, other, **words, higher_is_better=higher, libraries=libraries)

    found = [figure("speed", own, peer, "tokens/s", True)]
    if share:
        of_peer = [speed * share for speed in peer] if peer else None
        found.append(figure("MFU", [speed * share for speed in own], of_peer, "%", True))
    if memory["ours"]:
        of_peer = [memory["nanoGPT"] / 2**30] if peer else None
        found.append(figure("memory", [memory["ours"] / 2**30], of_peer, "GiB", False))
    return found


if __name__ == "__main__":
    main()
