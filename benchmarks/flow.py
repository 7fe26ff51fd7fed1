"""The flow beside plain `dvc repro`: independent stages side by side, and what a run costs beyond its stages.

python -m benchmarks.flow [--quick]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.measurements import Figure, compare, interleave, record
from benchmarks.runs.pipelines import PARROTFLOW, REPRO, environment, make_pipeline

SLEEPS = 8
LIBRARIES = ("prefect", "dvc")

EMPTY_FLOW = """\
from flows.environment import prepare_environment
prepare_environment()
from prefect import flow
@flow(name="empty")
def empty() -> None: ...
empty()
"""


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        figures = [
            side_by_side(Path(folder), 1 if quick else 5, 1 if quick else 3),
            nothing_to_do(Path(folder), 2 if quick else 5),
            per_stage(Path(folder), 2 if quick else 5),
        ]
    record("flow", figures)


def sleeping(seconds: float) -> str:
    """A dvc.yaml of independent stages that sleep, and one that joins them."""
    stages = f"stages:\n  wait:\n    matrix: {{n: {list(range(SLEEPS))}}}\n"
    stages += f'    cmd: sleep {seconds} && echo ${{item.n}} > w${{item.n}}.txt\n    outs: ["w${{item.n}}.txt"]\n'
    joined = [f"w{number}.txt" for number in range(SLEEPS)]
    return stages + f"  join:\n    cmd: cat {' '.join(joined)} > all.txt\n    deps: {joined}\n    outs: [all.txt]\n"


def side_by_side(folder: Path, seconds: float, runs: int) -> Figure:
    """8 independent stages and a join, two at once."""
    project = make_pipeline(folder / "sleeping", sleeping(seconds))
    sides = {"ours": partial(fresh, project, PARROTFLOW), "dvc": partial(fresh, project, REPRO)}
    measured = interleave(sides, runs)
    return compare(
        f"{SLEEPS} independent stages of {seconds:g} s and a join, on 2 slots",
        measured["ours"],
        measured["dvc"],
        peer_name="dvc repro",
        unit="s",
        higher_is_better=False,
        libraries=LIBRARIES,
    )


def nothing_to_do(folder: Path, runs: int) -> Figure:
    """A run of a pipeline that is up to date, beside a Prefect flow that does nothing."""
    project = make_pipeline(folder / "idle", "stages:\n  one: {cmd: echo 1 > one.txt, outs: [one.txt]}\n")
    timed(project, PARROTFLOW)
    sides = {
        "ours": lambda: timed(project, PARROTFLOW),
        "empty": lambda: timed(project, [sys.executable, "-c", EMPTY_FLOW]),
    }
    measured = interleave(sides, runs)
    return compare(
        "a run with nothing to do",
        measured["ours"],
        measured["empty"],
        peer_name="an empty Prefect flow",
        unit="s",
        higher_is_better=False,
        libraries=LIBRARIES,
    )


def per_stage(folder: Path, runs: int) -> Figure:
    """What each executed stage costs beyond its command: a chain of trivial stages against a run with nothing to do."""
    length = 6
    stages = ["stages:\n  s0: {cmd: echo 0 > f0.txt, outs: [f0.txt]}\n"]
    for number in range(1, length):
        before = number - 1
        stages.append(
            f"  s{number}: {{cmd: cp f{before}.txt f{number}.txt, deps: [f{before}.txt], outs: [f{number}.txt]}}\n"
        )
    project = make_pipeline(folder / "chain", "".join(stages))
    series = interleave({"all": lambda: fresh(project, PARROTFLOW), "none": lambda: timed(project, PARROTFLOW)}, runs)
    costs = [(whole - idle) / length for whole, idle in zip(series["all"], series["none"], strict=True)]
    return compare(
        "each executed stage, beyond its command",
        costs,
        None,
        unit="s",
        higher_is_better=False,
        libraries=LIBRARIES,
    )


def fresh(project: Path, command: list[str]) -> float:
    """Seconds of a run of which nothing is there."""
    for path in (project / "dvc.lock", project / ".dvc" / "cache"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    for path in project.glob("*.txt"):
        path.unlink()
    return timed(project, command)


def timed(project: Path, command: list[str]) -> float:
    """Seconds of a command that succeeds."""
    began = time.perf_counter()
    subprocess.run(command, cwd=project, env=os.environ | environment(), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
