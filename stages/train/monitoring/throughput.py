"""How fast a run is, and how much of its time was useful. Facts of the machine: next to the results, never part of
them.

Times differ from run to run, so no output that DVC keeps holds them. `speed.tsv` in the folder of a run's checkpoints
is only appended to: steps that were computed again after a kill are in it again, and `seconds` begins at 0 with each
session. The last speed of each model on this machine is what the forecast of another run goes by.

The effective training time ratio (ETTR) is the share of the time since a run began in which it made lasting progress.
Useful are the seconds of training steps and evaluations whose result a checkpoint or the final model holds (Kokolis et
al. 2024, "Revisiting Reliability in Large-Scale Machine Learning Research Clusters"). Lost are starts of the trainer,
steps that were computed again, waits for checkpoints, and the time between two sessions. The time before the first
start, such as in a queue, is not known here. The times of starts are in each checkpoint, and in a file next to them,
which also knows the sessions that died before they had saved anything.
"""

import json
import platform
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from stages.formats.revision.execution import TRAIN_SPEED
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import STATE_DIR
from stages.runtime.workers import cpu_facts
from stages.train.checkpoint.manifest import TrainingProgress
from stages.train.data.batches import MicroBatch
from stages.train.optim.settings import Precision

GPU_PEAK_FLOPS: dict[str, dict[str, float]] = {
    "H200 NVL": {"bf16": 835e12, "fp32": 60e12},
    "H200": {"bf16": 989e12, "fp32": 67e12},
    "GH200": {"bf16": 989e12, "fp32": 67e12},
    "H100 NVL": {"bf16": 835e12, "fp32": 60e12},
    "H100 PCIe": {"bf16": 756e12, "fp32": 51e12},
    "H100": {"bf16": 989e12, "fp32": 67e12},
    "A100": {"bf16": 312e12, "fp32": 19.5e12},
    "L40S": {"bf16": 362e12, "fp32": 91.6e12},
    "4090": {"bf16": 165e12, "fp32": 82.6e12},
    "V100-PCIE": {"fp32": 14e12},
    "V100": {"fp32": 15.7e12},
}
"""Dense peaks by the vendors' data sheets, floating-point operations per second: bf16 with sums in fp32 on the matrix
units, fp32 next to them (TF32 is not used). The first that is a word of a GPU's name counts."""

LESS_THAN_WHOLE = re.compile(r"\bMIG\b|\bLaptop\b|\b4090 D\b")
"""In the names of a part of a GPU, and of smaller chips that are sold under the same number."""


@dataclass
class Throughput:
    """Tokens trained and seconds since the start, and the seconds that were not spent on training steps."""

    flops_per_token: int
    peak_flops: float | None
    """Of all processes' devices together, per second; None where it is unknown."""
    tokens: int = 0
    data_seconds: float = 0.0
    aside_seconds: dict[str, float] = field(default_factory=lambda: {"checkpoint": 0.0, "evaluation": 0.0})
    """Not spent on training steps."""
    began: float = field(default_factory=time.perf_counter)

    @contextmanager
    def aside(self, what: Literal["checkpoint", "evaluation"]) -> Iterator[None]:
        """Time what happens within as no part of the training steps."""
        began = time.perf_counter()
        yield
        self.aside_seconds[what] += time.perf_counter() - began

    def timed(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """The same micro-batches; the time waited for each is counted."""
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self.data_seconds += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.began

    @property
    def tokens_per_second(self) -> float:
        """Trained tokens over all processes, evaluation and checkpoints left out of the time."""
        return self.tokens / max(1e-9, self.seconds - sum(self.aside_seconds.values()))

    def metrics(self) -> dict[str, float]:
        """All of it by name, for reports and trackers."""
        return {
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "data_seconds": self.data_seconds,
            **{f"{what}_seconds": seconds for what, seconds in self.aside_seconds.items()},
            "memory_bytes": float(peak_memory_bytes()),
        } | ({} if self.utilisation is None else {"model_flops_utilisation": self.utilisation})

    @property
    def utilisation(self) -> float | None:
        """Model-FLOPs utilisation (Chowdhery et al. 2022, "PaLM", appendix B); None where the peak is unknown."""
        return self.peak_flops and self.tokens_per_second * self.flops_per_token / self.peak_flops


def peak_memory_bytes() -> int:
    """The most memory that this process has held: on its GPU where it has one, else of the machine."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.max_memory_allocated()
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def device_name(device: torch.device) -> str:
    """The name of a GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return next(cpu_facts("model name"), platform.machine())


def peak_flops(device: torch.device, precision: Precision) -> float | None:
    """What the device can do per second by its data sheet in a precision; None for CPUs and GPUs that are not listed.

    Not measured instead: on CPUs the same product gave peaks that differed by a factor of two from call to call.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if LESS_THAN_WHOLE.search(name):
        return None
    found = (peaks for known, peaks in GPU_PEAK_FLOPS.items() if re.search(rf"\b{known}\b", name))
    return next(found, {}).get(precision)


SPEEDS = STATE_DIR / "speeds.json"
"""A list of `MeasuredSpeed`. Without it only forecasts are missing."""

SPEED_CURVE = "speed.tsv"
COLUMNS = (
    *("step", "seconds", "tokens_per_second", "model_flops_utilisation"),
    *("data_wait", "checkpoint_seconds", "evaluation_seconds", "memory_bytes"),
)


@dataclass
class SpeedCurve:
    """A line for each point of the training curves, about the steps since the line before."""

    path: Path
    throughput: Throughput
    tokens: int = 0
    training_seconds: float = 0.0
    data_seconds: float = 0.0

    def append(self, step: int) -> None:
        """Add the line of `step`. Speed and `data_wait`, the share of the time that was spent waiting for data, leave
        evaluation and checkpoints out; these have their sums, and the memory is the most so far. Of a device whose peak
        is unknown the utilisation is empty."""
        now, asides = self.throughput, self.throughput.aside_seconds
        seconds = now.seconds
        training = seconds - sum(asides.values())
        spent = max(1e-9, training - self.training_seconds)
        speed = (now.tokens - self.tokens) / spent
        utilisation = f"{speed * now.flops_per_token / now.peak_flops:.4f}" if now.peak_flops else ""
        wait = (now.data_seconds - self.data_seconds) / spent
        self.tokens, self.training_seconds, self.data_seconds = now.tokens, training, now.data_seconds
        values = (step, f"{seconds:.3f}", f"{speed:.1f}", utilisation, f"{wait:.4f}")
        sums = (f"{asides['checkpoint']:.3f}", f"{asides['evaluation']:.3f}", peak_memory_bytes())
        # A full disk costs these lines, not the run.
        with suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            if file.tell() == 0:
                file.write("\t".join(COLUMNS) + "\n")
            file.write("\t".join(map(str, (*values, *sums))) + "\n")


class MeasuredSpeed(BaseModel):
    """What a finished run says of its speed, in `reports/train_speed.json` among other things."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    device: str
    processes: int
    precision: str
    flops_per_token: Annotated[float, Field(gt=0)]
    """Of the model, which it identifies."""
    tokens_per_second: Annotated[float, Field(gt=0)]


def measured_speeds() -> Iterator[MeasuredSpeed]:
    """Of all models that were trained on this machine, and that of `reports/train_speed.json`, the latest first.

    What cannot be read is left out.
    """
    with suppress(OSError, ValueError):
        yield from TypeAdapter(list[MeasuredSpeed]).validate_json(SPEEDS.read_bytes())
    with suppress(OSError, ValueError):
        yield MeasuredSpeed.model_validate_json(TRAIN_SPEED.read_bytes())


def remember_speed(facts: Mapping[str, Any]) -> None:
    """Keep the speed of a finished run, in place of an earlier one of the same model executed alike.

    One that was continued at its last step has none.
    """
    if not facts["tokens_per_second"]:
        return
    new = MeasuredSpeed.model_validate(facts)
    same = {"tokens_per_second": new.tokens_per_second}
    kept = [new, *(known for known in measured_speeds() if known.model_copy(update=same) != new)]
    with suppress(OSError):  # a full disk costs the next forecast, not the run
        atomic_write(SPEEDS, json.dumps([speed.model_dump() for speed in kept], indent=1))


STARTS = "starts-of-"
"""In the folder of a run's checkpoints, followed by its `max_steps`: the time of each start, a line each."""


@dataclass(frozen=True)
class Uptime:
    """Of a run over all of its sessions."""

    starts: list[float]
    """When each session began, seconds since 1970, increasing; the last is this one."""
    useful_before: float
    """Useful seconds of the sessions before."""
    file: Path
    """Of its starts."""

    @classmethod
    def of(cls, progress: TrainingProgress, folder: Path, began: float, max_steps: int) -> "Uptime":
        """Of the session of a run of `max_steps` that `began` then and continues from `progress`; the run's checkpoints
        are in `folder`.

        A run that was already complete and is given another length is measured from there on: it did not wait to be
        continued. It may continue from before its last step, where the shorter one's rates had not begun to decay.
        """
        file, is_last = folder / f"{STARTS}{max_steps}", progress.step == progress.max_steps
        if progress.max_steps == max_steps and is_last:
            return cls([began], 0.0, file)
        of_other = progress.max_steps != max_steps
        was_complete = of_other and (is_last or (folder / f"step-{progress.max_steps:08d}").exists())
        known, useful = ([], 0.0) if was_complete else (progress.starts, progress.useful_seconds)
        if file.exists():
            known = sorted({*known, *map(float, file.read_text().split())})
        return cls([*(start for start in known if start < began), began], useful, file)

    def write(self) -> None:
        """Note that this session began; on a full disk the run goes on without."""
        with suppress(OSError):
            atomic_write(self.file, "".join(f"{start}\n" for start in self.starts))

    def useful_seconds(self, throughput: Throughput) -> float:
        """Up to now, if what this session computed lasts."""
        return self.useful_before + throughput.seconds - throughput.aside_seconds["checkpoint"]

    def metrics(self, throughput: Throughput) -> dict[str, float]:
        """All of it by name, of a run that is complete now."""
        useful, total = self.useful_seconds(throughput), time.time() - self.starts[0]
        return {
            "interruptions": len(self.starts) - 1,
            "total_seconds": total,
            "lost_seconds": total - useful,
            "effective_training_time_ratio": useful / total,
        }
