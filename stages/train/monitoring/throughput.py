"""How fast a run is, and what it spends its time on: facts of the machine, which no output that DVC keeps has.

`PARROTFLOW_PROFILE=10-12` records the steps 10 to 12 by torch's profiler: operators and kernels by thread and stream,
in a trace of each process that https://ui.perfetto.dev opens. The results stay the same; recorded steps take longer.
"""

import os
import platform
import re
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import torch
from accelerate import Accelerator
from torch.profiler import ProfilerActivity, profile, record_function

from stages.runtime.errors import UserError
from stages.runtime.workers import cpu_facts
from stages.train.compute.data.batches import MicroBatch
from stages.train.compute.optim.settings import Precision

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
    """The peak of all processes' devices together, per second; None if it is unknown."""
    tokens: int = 0
    data_seconds: float = 0.0
    excluded_seconds: dict[str, float] = field(default_factory=lambda: {"checkpoint": 0.0, "evaluation": 0.0})
    """Not spent on training steps."""
    began: float = field(default_factory=time.perf_counter)

    def restart(self) -> None:
        """Forget what was timed so far: the first step of a compiled model is the compiler's."""
        self.tokens, self.data_seconds, self.began = 0, 0.0, time.perf_counter()
        self.excluded_seconds = dict.fromkeys(self.excluded_seconds, 0.0)

    @contextmanager
    def exclude(self, what: Literal["checkpoint", "evaluation"]) -> Iterator[None]:
        """Exclude this block from the training time."""
        began = time.perf_counter()
        yield
        self.excluded_seconds[what] += time.perf_counter() - began

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
        return self.tokens / max(1e-9, self.seconds - sum(self.excluded_seconds.values()))

    def metrics(self) -> dict[str, float]:
        """All of it by name, for reports and trackers."""
        return {
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "data_seconds": self.data_seconds,
            **{f"{what}_seconds": seconds for what, seconds in self.excluded_seconds.items()},
            "memory_bytes": float(peak_memory_bytes()),
        } | ({} if self.utilisation is None else {"model_flops_utilisation": self.utilisation})

    @property
    def utilisation(self) -> float | None:
        """Model-FLOPs utilisation (Chowdhery et al. 2022, "PaLM", appendix B); None if the peak is unknown."""
        return self.peak_flops and self.tokens_per_second * self.flops_per_token / self.peak_flops


def peak_memory_bytes() -> int:
    """The most memory that this process has held: on its GPU if it has one, else of the machine."""
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
    """The peak of the device per second in a precision, by its data sheet; None for CPUs and GPUs that are not listed.

    Not measured instead: on CPUs the same product gave peaks that differed by a factor of two from call to call.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if LESS_THAN_WHOLE.search(name):
        return None
    found = (peaks for known, peaks in GPU_PEAK_FLOPS.items() if re.search(rf"\b{known}\b", name))
    return next(found, {}).get(precision)


PROFILE = "PARROTFLOW_PROFILE"

Batches = TypeVar("Batches")


def profiled_steps() -> range:
    """The steps that the variable names, from 0; none if it is not set. Raises UserError if it names no steps."""
    asked = os.environ.get(PROFILE, "")
    if not asked:
        return range(0)
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", asked)
    steps = range(int(found[1]) - 1, int(found[2] or found[1])) if found else range(0)
    if not steps or steps.start < 0:
        raise UserError(f"{PROFILE}={asked}: expected steps, from 1, such as 10 or 10-12")
    return steps


def profiled(
    steps: Iterable[tuple[int, Batches]], folder: Path, accelerator: Accelerator
) -> Iterator[tuple[int, Batches]]:
    """The same steps (numbers from 0, with their batches); what is done with those that are asked for is recorded.

    Traces are written to `profile/` in `folder` after the last of them. Every process calls this.
    """
    asked, began = profiled_steps(), False
    path = folder / "profile" / f"steps-{asked.start + 1}-{asked.stop}-rank{accelerator.process_index}.json.gz"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()

    def write(recording: profile) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        recording.export_chrome_trace(str(path))
        accelerator.print(f"profile: {path} (open it at https://ui.perfetto.dev)")

    with ExitStack() as recording:  # left even if the run ends within these steps
        for step, batches in steps:
            if step in asked and not began:
                recording.enter_context(profile(activities=activities, on_trace_ready=write))
                began = True
            with record_function(f"step {step + 1}") if step in asked else nullcontext():
                yield step, batches
            if step + 1 == asked.stop:
                recording.close()
