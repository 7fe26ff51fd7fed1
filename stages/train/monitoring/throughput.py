"""How fast a run was. Facts of the machine: reported beside the results, never part of them."""

import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

GPU_PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12, "V100": 125e12}
"""Dense bf16 (V100: fp16) peak by the vendors' data sheets, floating-point operations per second."""


@dataclass
class Clock:
    """Seconds since the run began, and those spent off the arithmetic."""

    flops_per_token: float
    peak_flops: float
    """Of all processes' devices together, per second."""
    tokens: int = 0
    data_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Time what happens within as checkpointing."""
        began = time.perf_counter()
        yield
        self.checkpoint_seconds += time.perf_counter() - began

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Time what happens within as evaluation."""
        began = time.perf_counter()
        yield
        self.evaluation_seconds += time.perf_counter() - began

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.began

    @property
    def tokens_per_second(self) -> float:
        """Trained tokens over all processes, evaluation and checkpoints left out of the time."""
        return self.tokens / max(1e-9, self.seconds - self.evaluation_seconds - self.checkpoint_seconds)

    def figures(self) -> dict[str, float]:
        """All of it by name, for reports and trackers."""
        return {
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "model_flops_utilisation": self.tokens_per_second * self.flops_per_token / self.peak_flops,
            "data_seconds": self.data_seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "checkpoint_seconds": self.checkpoint_seconds,
            "memory_bytes": float(peak_memory_bytes()),
        }


def peak_memory_bytes() -> int:
    """The most memory that this process has held: on its GPU where it has one, else of the machine."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.max_memory_allocated()
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def processor_name() -> str:
    """The CPU's name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def peak_flops(device: torch.device) -> float:
    """What the device can do: the data sheet's figure for a known GPU, else a measured bf16 matrix product."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for known, peak in GPU_PEAK_FLOPS.items():
            if known in name:
                return peak
    return _measured_peak(device)


def _measured_peak(device: torch.device, size: int = 1024, tries: int = 5) -> float:
    left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(tries):
        began = time.perf_counter()
        (left @ left)[0, 0].item()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
