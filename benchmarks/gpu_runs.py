"""Trainings by every way that one GPU can train, each by the stage itself: the loss that they end at, speed and memory.

    python -m benchmarks.gpu_runs [--only NAME ...] [--at-once 8] [--quick] [--try-on-cpu]

Each run is a few steps of the project's own tokens at a low rate, so that the same arithmetic must end at about the
same loss: what a way rounds differently stays small. First all of them, several at once on the one GPU, which changes
no loss; then those whose speed and memory are compared, each alone. `--try-on-cpu` takes a tiny model and the CPU's
presets, and records nothing.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml

from benchmarks.measurements import ROOT, Measurement, compare, record
from benchmarks.train_gpu import GPT2, TINY, gpu_parser, is_measured
from stages.formats.reports import read_json
from stages.runtime.section import read_params_file

DATA = ROOT / "data"
"""The project's tokenizer and token stores."""

LIBRARIES = ("torch", "transformers", "accelerate")


@dataclass(frozen=True)
class Run:
    """One training."""

    launch: str = "one_gpu"
    """A preset of deploy/launch/, with one process."""
    precision: str = "bf16"
    compiled: bool = True
    attention: str = "causal"
    sequence_length: int = 1024
    like: str = ""
    """The run that it must agree with."""


RUNS = {
    "fp32": Run(precision="fp32", compiled=False),
    "fp32 ddp": Run("ddp", precision="fp32", compiled=False, like="fp32"),
    "fp32 fsdp2": Run("fsdp2", precision="fp32", compiled=False, like="fp32"),
    "fp32 compiled": Run(precision="fp32", like="fp32"),
    "fp32 fsdp2 compiled": Run("fsdp2", precision="fp32", like="fp32"),
    "bf16 eager": Run(compiled=False, like="fp32"),
    "bf16": Run(like="fp32"),
    "bf16 ddp": Run("ddp", like="fp32"),
    "bf16 fsdp2 eager": Run("fsdp2", compiled=False, like="fp32"),
    "bf16 fsdp2": Run("fsdp2", like="fp32"),
    "documents fp32": Run(precision="fp32", compiled=False, attention="document"),
    "documents bf16 eager": Run(compiled=False, attention="document", like="documents fp32"),
    "documents bf16": Run(attention="document", like="documents fp32"),
    "documents bf16 fsdp2": Run("fsdp2", attention="document", like="documents fp32"),
    "4096": Run(sequence_length=4096),
    "4096 documents": Run(sequence_length=4096, attention="document"),
}
"""All of GPT-2 124M with the corpus' own vocabulary, 8,192 tokens a step in one micro-batch."""

TIMED = {"bf16": "", "documents bf16": "bf16", "4096": "", "4096 documents": "4096"}
"""Those whose speed and memory are measured, and the run with causal attention that each is compared with."""


@dataclass(frozen=True)
class Result:
    """What a run wrote."""

    losses: dict[int, float]
    """After steps, nats per token of the step's batch."""
    tokens_per_second: float
    """The median of the second half, after what is compiled."""
    memory_bytes: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Train each way, and record what was found."""
    parser = gpu_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), metavar="NAME")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args(arguments)
    if not is_measured(given):
        return
    device = "" if given.try_on_cpu else torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.at_once) as pool:
        train = partial(trained, Path(folder), on_cpu=given.try_on_cpu)
        found = pool.map(partial(train, steps=given.steps), range(len(given.only)), given.only)
        ended = dict(zip(given.only, found, strict=True))
        alone = [name for name in TIMED if ended.get(name)]
        timed = {name: train(len(RUNS) + number, name, steps=2 * given.steps) for number, name in enumerate(alone)}
    results = {name: result for name, result in ended.items() if result}
    figures = [*losses(results, device), *speeds({name: result for name, result in timed.items() if result}, device)]
    record("gpu_runs", figures, quick=given.quick or given.try_on_cpu)
    if None in [*ended.values(), *timed.values()]:
        sys.exit(1)


def trained(folder: Path, number: int, name: str, steps: int, on_cpu: bool) -> Result | None:
    """Run one to its end in a folder of its own; None where it failed, which is printed."""
    run = RUNS[name]
    project = folder / str(number)
    project.mkdir()
    (project / "data").symlink_to(DATA)
    (project / "requirements.lock").symlink_to(ROOT / "requirements.lock")
    (project / "params.yaml").write_text(yaml.safe_dump(sections(run, steps, on_cpu)), encoding="utf-8")
    (project / "own.yaml").write_text(yaml.safe_dump(launch_settings(run, number, on_cpu)), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment |= {"PARROTFLOW_LAUNCH": "own.yaml", "PARROTFLOW_COMPILE": "on" if run.compiled else "off"}
    environment["PARROTFLOW_RESTARTS"] = "0"
    command = [sys.executable, "-m", "stages.train"]
    ended = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        print(f"{name}: exit code {ended.returncode}\n{(ended.stdout + ended.stderr)[-3000:]}", flush=True)
        return None
    curve = pd.read_table(project / "reports/curves/training_loss.tsv")
    losses = dict(zip(curve["step"].tolist(), curve["training_loss"].tolist(), strict=True))
    speed = read_json(project / "reports/train_speed.json")
    result = Result(losses, speed["tokens_per_second"], int(speed["memory_bytes"]))
    forecast = re.findall(r"^memory.*$", ended.stdout, re.MULTILINE)
    print(f"{name}: {result} {' '.join(forecast)}", flush=True)
    return result


def sections(run: Run, steps: int, on_cpu: bool) -> dict[str, Any]:
    """The sections that a training reads."""
    length = TINY["n_positions"] if on_cpu else run.sequence_length
    params = read_params_file(ROOT / "params.yaml")
    values: dict[str, Any] = params["train"]
    values |= {"model": (TINY if on_cpu else GPT2) | {"n_positions": length}, "sequence_length": length}
    values |= {"global_batch_size": 8192 // run.sequence_length, "attention": run.attention, "precision": run.precision}
    values |= {"max_steps": steps, "evaluation_sequences": 1}
    every = {"log_every_steps": 5, "evaluate_every_steps": steps, "checkpoint_every_steps": steps}
    values["optimizer"] |= {"name": "adamw", "adamw_learning_rate": 5e-5}
    values["schedule"] |= {"warmup_steps": min(5, steps)}
    return {"train": values, "monitoring": params["monitoring"] | every}


def launch_settings(run: Run, number: int, on_cpu: bool) -> dict[str, Any]:
    """The preset's, for one process, with a port of the run's own."""
    preset = ("cpu_2_fsdp2" if run.launch == "fsdp2" else "cpu") if on_cpu else run.launch
    settings: dict[str, Any] = yaml.safe_load((ROOT / f"deploy/launch/{preset}.yaml").read_text(encoding="utf-8"))
    own = {} if on_cpu and run.launch == "fsdp2" else {"num_processes": 1}
    return settings | own | ({} if run.launch == "one_gpu" else {"main_process_port": 29600 + number})


def losses(results: dict[str, Result], device: str) -> Iterator[Measurement]:
    """Each run's last loss, beside that of the run with which it must agree."""
    for name, result in results.items():
        last = max(result.losses)
        other = results.get(RUNS[name].like)
        series = [result.losses[last]], [other.losses[last]] if other else None
        figure = partial(compare, peer_name=RUNS[name].like if other else "", libraries=LIBRARIES, accelerator=device)
        yield figure(f"GPT-2 124M: loss after {last} steps, {name}", *series, unit="nats", higher_is_better=False)


def speeds(results: dict[str, Result], device: str) -> Iterator[Measurement]:
    """Speed and memory; of attention within documents beside those of causal attention."""
    for name, result in results.items():
        other = results.get(TIMED[name])
        figure = partial(compare, peer_name="causal" if other else "", libraries=LIBRARIES, accelerator=device)
        speed = [result.tokens_per_second], [other.tokens_per_second] if other else None
        yield figure(f"GPT-2 124M: speed, {name}", *speed, unit="tokens/s", higher_is_better=True)
        memory = [result.memory_bytes / 2**30], [other.memory_bytes / 2**30] if other else None
        yield figure(f"GPT-2 124M: memory, {name}", *memory, unit="GiB", higher_is_better=False)


if __name__ == "__main__":
    main()
