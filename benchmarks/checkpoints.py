"""What a checkpoint every 100 steps costs, and what waiting for data costs: a small GPT-2 on this machine.

python -m benchmarks.checkpoints [--quick]

Two runs take turns, one with a checkpoint every 100 steps, one with none; the clock runs from step 20, when everything
is warm, to step 320.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.measurements import compare, interleave, record
from benchmarks.runs.training import MINI, training_project
from benchmarks.runs.watching import steps_per_second
from stages.formats.reports import read_json

FIRST, EVERY = 20, 100


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    last = FIRST + (1 if quick else 3) * EVERY
    shares: list[float] = []
    sides = {
        "with": lambda: speed(last, EVERY, shares),
        "without": lambda: speed(last, 10_000, []),
    }
    measured = interleave(sides, 1 if quick else 3)
    figures = [
        compare(
            f"steps of a {MINI}, a checkpoint every {EVERY}",
            measured["with"],
            measured["without"],
            peer_name="no checkpoints",
            unit="steps/s",
            higher_is_better=True,
            libraries=["torch", "accelerate"],
        ),
        compare(
            "time spent waiting for data, share of the run",
            [share * 100 for share in shares],
            None,
            unit="%",
            higher_is_better=False,
            libraries=["torch", "numpy"],
        ),
    ]
    record("checkpoints", figures, quick=quick)


def speed(last: int, every: int, data_shares: list[float]) -> float:
    """Steps per second of a run; its share of waiting for data is appended."""
    with tempfile.TemporaryDirectory() as folder:
        project = training_project(
            Path(folder) / "run",
            max_steps=last + 1,
            log_every_steps=1,
            evaluate_every_steps=10_000,
            checkpoint_every_steps=every,
        )
        measured = steps_per_second(project, FIRST, last, PARROTFLOW_COMPILE="on")
        clock = read_json(project / "reports/train_speed.json")
        data_shares.append(float(clock["data_seconds"]) / float(clock["seconds"]))
    return measured


if __name__ == "__main__":
    main()
