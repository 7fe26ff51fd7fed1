"""When a training run that goes on reached which step: read from its curve, which grows with every logged step."""

import subprocess
import time
from pathlib import Path

from benchmarks.runs.training import start_training

POLL_SECONDS = 0.005


def wait_for_step(process: "subprocess.Popen[bytes]", project: Path, step: int) -> float:
    """Wait until the run has logged a step; the time of `time.perf_counter()` then. Ends the benchmark if it fails."""
    while logged_step(project) < step:
        if process.poll() is not None and logged_step(project) < step:
            raise SystemExit(f"training ended early: {(project / 'log').read_text(encoding='utf-8')[-2000:]}")
        time.sleep(POLL_SECONDS)
    return time.perf_counter()


def logged_step(project: Path) -> int:
    """The last step on the curve; 0 where there is none."""
    for curve in (project / ".parrotflow/checkpoints").glob("*/curves/training_loss.tsv"):
        lines = curve.read_text(encoding="utf-8").split("\n")
        # What follows the last line break is not whole yet; the first line names the columns.
        return int(lines[-2].split("\t")[0]) if len(lines) > 2 else 0
    return 0


def steps_per_second(project: Path, first: int, last: int, **variables: str) -> float:
    """Run the training of a project (`log_every_steps: 1`) to its end; its speed between two of its steps."""
    process = start_training(project, **variables)
    began = wait_for_step(process, project, first)
    ended = wait_for_step(process, project, last)
    if process.wait():
        raise SystemExit(f"training failed: {(project / 'log').read_text(encoding='utf-8')[-2000:]}")
    return (last - first) / (ended - began)
