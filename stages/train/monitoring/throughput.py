"""How fast a run is, and what it spends its time on. No output of the stage contains this: it depends on the machine.

`PARROTFLOW_PROFILE=10-12` records the steps 10 to 12 with torch's profiler: operators and kernels by thread and stream,
one trace per process, for https://ui.perfetto.dev. The results stay the same; recorded steps take longer.
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
"""Dense peaks from the vendors' data sheets, FLOP/s: bf16 with fp32 sums on the matrix units, fp32 without (TF32 is
not used). The first key that is a word of the GPU's name counts."""

LESS_THAN_WHOLE = re.compile(r"\bMIG\b|\bLaptop\b|\b4090 D\b")
"""Names of partitions of a GPU, and of smaller chips that are sold under the same number."""


@dataclass
class Throughput:
    """Tokens trained and seconds elapsed since the start."""

    flops_per_token: int
    peak_flops: float | None
    """The sum over all processes' devices, per second; None if it is unknown."""
    tokens: int = 0
    data_seconds: float = 0.0
    excluded_seconds: dict[str, float] = field(default_factory=lambda: {"checkpoint": 0.0, "evaluation": 0.0})
    """Seconds not spent on training steps."""
    began: float = field(default_factory=time.perf_counter)

    def restart(self) -> None:
        """Discard the times so far, because the first step of a compiled model includes the compilation."""
        self.tokens, self.data_seconds, self.began = 0, 0.0, time.perf_counter()
        self.excluded_seconds = dict.fromkeys(self.excluded_seconds, 0.0)

    @contextmanager
    def exclude(self, what: Literal["checkpoint", "evaluation"]) -> Iterator[None]:
        """Exclude this block from the training time."""
        began = time.perf_counter()
        yield
        self.excluded_seconds[what] += time.perf_counter() - began

    def timed(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield the same micro-batches and count the time spent waiting for them."""
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self.data_seconds += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all processes per second, without the time of evaluation and checkpoints."""
        return self.tokens / max(1e-9, self.seconds - sum(self.excluded_seconds.values()))

    def metrics(self) -> dict[str, float]:
        """All values by name, for reports and trackers."""
        return {
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "data_seconds": self.data_seconds,
            **{f"{what}_seconds": seconds for what, seconds in self.excluded_seconds.items()},
            "memory_bytes": float(peak_memory_bytes()),
        } | ({} if self.utilization is None else {"model_flops_utilization": self.utilization})

    @property
    def utilization(self) -> float | None:
        """Model-FLOPs utilization (Chowdhery et al. 2022, "PaLM", appendix B); None if the peak is unknown."""
        return self.peak_flops and self.tokens_per_second * self.flops_per_token / self.peak_flops


def peak_memory_bytes() -> int:
    """The most memory that this process has held, on its GPU if it has one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.max_memory_allocated()
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def device_name(device: torch.device) -> str:
    """The name of a GPU or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return next(cpu_facts("model name"), platform.machine())


def peak_flops(device: torch.device, precision: Precision) -> float | None:
    """The device's peak FLOP/s in a precision, from its data sheet; None for CPUs and GPUs that are not listed.

    It is not measured: on CPUs repeated measurements differed by a factor of two.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if LESS_THAN_WHOLE.search(name):
        return None
    matches = (peaks for known, peaks in GPU_PEAK_FLOPS.items() if re.search(rf"\b{known}\b", name))
    return next(matches, {}).get(precision)


PROFILE = "PARROTFLOW_PROFILE"

Batches = TypeVar("Batches")


def profiled_steps() -> range:
    """The steps to profile, from 0; empty if `PROFILE` is not set. Raises UserError if it is not one or more steps."""
    asked = os.environ.get(PROFILE, "")
    if not asked:
        return range(0)
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", asked)
    steps = range(int(match[1]) - 1, int(match[2] or match[1])) if match else range(0)
    if not steps or steps.start < 0:
        raise UserError(f"{PROFILE}={asked}: expected steps, from 1, such as 10 or 10-12")
    return steps


def profiled(
    steps: Iterable[tuple[int, Batches]], folder: Path, accelerator: Accelerator
) -> Iterator[tuple[int, Batches]]:
    """Yield the same steps (numbers from 0, with their batches), and profile those of `profiled_steps`.

    After the last of these a trace is written to `folder`/profile. Every process calls this.
    """
    asked, began = profiled_steps(), False
    path = folder / "profile" / f"steps-{asked.start + 1}-{asked.stop}-rank{accelerator.process_index}.json.gz"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()

    def write(recording: profile) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        recording.export_chrome_trace(str(path))
        accelerator.print(f"profile: {path} (open it at https://ui.perfetto.dev)")

    with ExitStack() as recording:  # also closed if the run ends within these steps
        for step, batches in steps:
            if step in asked and not began:
                recording.enter_context(profile(activities=activities, on_trace_ready=write))
                began = True
            with record_function(f"step {step + 1}") if step in asked else nullcontext():
                yield step, batches
            if step + 1 == asked.stop:
                recording.close()
