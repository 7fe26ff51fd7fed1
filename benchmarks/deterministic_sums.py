"""What the same bits on any number of processes cost: `train.deterministic_micro_batch_size` against the usual sum.

python -m benchmarks.deterministic_sums [--quick]

A GPT-2 of 4.3 million parameters with micro-batches of `MICRO_BATCH` sequences on both sides, on one process and on
two.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measurements import Measurement, compare, interleave, record
from benchmarks.runs.training import MINI, training_project
from benchmarks.runs.watching import steps_per_second

MICRO_BATCH = 4
FIRST, LAST = 10, 50


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    runs = 1 if quick else 3
    record(
        "deterministic_sums",
        [figure(launch, processes, runs) for launch, processes in (("cpu", 1), ("cpu_2", 2))],
        quick=quick,
    )


def figure(launch: str, processes: int, runs: int) -> Measurement:
    """Steps per second of both ways to sum."""
    sides = {"deterministic": partial(speed, launch, MICRO_BATCH), "usual": partial(speed, launch, None)}
    measured = interleave(sides, runs)
    return compare(
        f"steps of a {MINI} with the deterministic sum, {processes} process{'es' if processes > 1 else ''}",
        measured["deterministic"],
        measured["usual"],
        peer_name="the usual sum",
        unit="steps/s",
        higher_is_better=True,
        libraries=["torch", "accelerate"],
    )


def speed(launch: str, deterministic_micro_batch_size: int | None) -> float:
    """Steps per second."""
    with tempfile.TemporaryDirectory() as folder:
        project = training_project(
            Path(folder) / "run",
            deterministic_micro_batch_size=deterministic_micro_batch_size,
            max_steps=LAST,
            log_every_steps=1,
            evaluate_every_steps=10_000,
            checkpoint_every_steps=10_000,
        )
        variables = {"PARROTFLOW_LAUNCH": launch, "PARROTFLOW_MICRO_BATCH": str(MICRO_BATCH)}
        return steps_per_second(project, FIRST, LAST, PARROTFLOW_COMPILE="off", **variables)


if __name__ == "__main__":
    main()
