"""`PARROTFLOW_PROFILE=10-12`: what steps 10 to 12 spent their time on, as a trace that https://ui.perfetto.dev opens.

Each process writes its own trace, by torch's profiler: operators and kernels by thread and stream, grouped by step.
Profiling changes no result; while it records, steps take longer.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

import torch
from accelerate import Accelerator
from torch.profiler import ProfilerActivity, profile, record_function

from stages.runtime.entry import UserError

PROFILE = "PARROTFLOW_PROFILE"

Batches = TypeVar("Batches")


def profiled_steps() -> range:
    """The steps that the variable names, from 0; none where it is not set. Raises UserError where it names no steps."""
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

    Traces are written to `profile/` in `folder` once the next step is taken. Every process calls this.
    """
    asked = profiled_steps()
    path = folder / "profile" / f"steps-{asked.start + 1}-{asked.stop}-rank{accelerator.process_index}.json.gz"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    recording: profile | None = None
    try:
        for step, batches in steps:
            if step in asked and recording is None:
                recording = profile(activities=activities)
                recording.start()
            with record_function(f"step {step + 1}") if recording else nullcontext():
                yield step, batches
            if recording and step + 1 == asked.stop:
                complete, recording = recording, None
                _write(complete, path, accelerator)
    finally:
        if recording:  # the run ended within these steps
            _write(recording, path, accelerator)


def _write(recording: profile, path: Path, accelerator: Accelerator) -> None:
    recording.stop()
    path.parent.mkdir(parents=True, exist_ok=True)
    recording.export_chrome_trace(str(path))
    accelerator.print(f"profile: {path} (open it at https://ui.perfetto.dev)")
