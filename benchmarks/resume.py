"""How long until the first step is done: from nothing, and resumed early and late. Resuming skips through no data.

python -m benchmarks.resume [--quick]
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.measurements import compare, interleave, record
from benchmarks.runs.training import MINI, start_training, training_project
from benchmarks.runs.watching import logged_step, wait_for_step

EARLY, LATE = 10, 200
"""Steps that are resumed from."""


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    late = 20 if quick else LATE
    with tempfile.TemporaryDirectory() as folder:
        project = training_project(
            Path(folder) / "run",
            log_every_steps=1,
            evaluate_every_steps=10_000,
            checkpoint_every_steps=EARLY,
            milestone_every_steps=EARLY,
        )
        process = start_training(project, PARROTFLOW_COMPILE="off")
        # A step beyond, so that the checkpoint is whole.
        wait_for_step(process, project, late + EARLY)
        process.terminate()
        process.wait()
        saved = Path(folder) / "saved"
        (project / ".parrotflow").rename(saved)
        sides = {
            "from nothing": lambda: first_step_seconds(project, None, 0),
            "early": lambda: first_step_seconds(project, saved, EARLY),
            "late": lambda: first_step_seconds(project, saved, late),
        }
        measured = interleave(sides, 1 if quick else 5)
    figures = [
        compare(
            f"until the first step is done, resumed at step {step}, {MINI}",
            measured[side],
            measured["from nothing"],
            peer_name="from nothing",
            unit="s",
            higher_is_better=False,
            libraries=["torch", "accelerate"],
        )
        for side, step in (("early", EARLY), ("late", late))
    ]
    record("resume", figures, quick=quick)


def first_step_seconds(project: Path, saved: Path | None, step: int) -> float:
    """Seconds from the command to the end of the first step, with the checkpoint of `step` alone."""
    state = project / ".parrotflow"
    shutil.rmtree(state, ignore_errors=True)
    if saved is not None:
        shutil.copytree(saved, state)
        for checkpoint in state.glob("checkpoints/*/step-*"):
            if checkpoint.name != f"step-{step:08d}":
                shutil.rmtree(checkpoint)
        for curve in state.glob("checkpoints/*/curves/*"):
            curve.unlink()
    if logged_step(project):
        raise SystemExit(f"{project}: not as it was meant to be")
    began = time.perf_counter()
    process = start_training(project, PARROTFLOW_COMPILE="off")
    ended = wait_for_step(process, project, step + 1)
    process.terminate()
    process.wait()
    if saved is not None and f"continuing at step {step} " not in (project / "log").read_text(encoding="utf-8"):
        raise SystemExit(f"{project}: did not resume at step {step}")
    return ended - began


if __name__ == "__main__":
    main()
