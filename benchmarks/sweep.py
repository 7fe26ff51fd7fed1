"""A sweep of a toy grid: two slots against one cell after another, and kills that change no table.

    python -m benchmarks.sweep [--quick] [--kills 20]

The stages are commands that sleep, so the figures show what the sweep itself costs. From the records of the runs it is
checked that what the cells share was computed once. For the kills a sweep of four cells is started, one of its
processes or all of them get SIGKILL at a random moment, and the same command is repeated; the tables (.md, .tex, .csv)
are compared with those of an undisturbed sweep, byte for byte.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import yaml

from benchmarks.flow import LIBRARIES
from benchmarks.measurements import Measurement, compare, record
from benchmarks.runs.pipelines import environment, make_pipeline
from benchmarks.runs.trial import kill, members

SWEEP = [sys.executable, "-m", "flows.cli", "sweep", "toy"]

TRAIN = """\
import json, time, yaml
params = yaml.safe_load(open("params.yaml"))["model"]
time.sleep(params["seconds"])
json.dump({"loss": 4.0 - params["width"] / 8 + params["seed"] / 64}, open("scores.json", "w"))
"""

DVC_YAML = """\
stages:
  tokenize: {cmd: sleep 2 && wc -c train.py > tokens.txt, deps: [train.py], outs: [tokens.txt]}
  train:
    cmd: python train.py
    params: [model]
    deps: [train.py, tokens.txt]
    metrics: [scores.json: {cache: false}]
"""

LOSS = {"label": "loss", "unit": "nats", "better": "lower", "decimals": 2, "source": "scores.json:loss"}

ATTEMPTS = 5


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter cells and three kills; nothing is recorded")
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    runs, seconds, kills = (1, 2.0, 3) if arguments.quick else (3, 6.0, arguments.kills)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        timings: dict[int, list[float]] = {1: [], 2: []}
        for number in range(runs):
            for slots, measured in timings.items():
                project = make_project(folder / f"{slots}-{number}", widths=4, seconds=seconds)
                took, said = swept(project, slots)
                measured.append(took)
                require_shared_once(said, cells=12)
        figures = [speed(timings, seconds), surviving(folder, Random("sweep"), kills)]
    if not arguments.quick:
        record("sweep", figures, quick=arguments.quick)


def make_project(folder: Path, *, widths: int, seconds: float) -> Path:
    """A repository with an experiment of `widths` x 3 seeds."""
    project = make_pipeline(folder, DVC_YAML)
    experiment = {
        "question": "What does a sweep cost?",
        "targets": ["train"],
        "axes": {"width": {"param": "model.width", "values": list(range(1, widths + 1))}},
        "seeds": {"keys": ["model.seed"], "values": [0, 1, 2] if widths > 2 else [0, 1]},
        "metrics": {"loss": LOSS},
        "tables": {"main": {"caption": "Loss.", "rows": ["width"], "metrics": ["loss"], "spread": "sd"}},
        "settings": {"small": {"minutes": 1}, "full": {"minutes": None}},
    }
    model = {"width": 1, "seed": 0, "seconds": seconds}
    (project / "experiments").mkdir()
    (project / "experiments/toy.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    (project / "params.yaml").write_text(yaml.safe_dump({"model": model}), encoding="utf-8")
    (project / "train.py").write_text(TRAIN, encoding="utf-8")
    subprocess.run(["git", "add", "--all"], cwd=project, check=True)
    identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    subprocess.run(["git", *identity, "commit", "--quiet", "-m", "A toy grid"], cwd=project, check=True)
    return project


def start(project: Path, slots: int) -> "subprocess.Popen[str]":
    """Start a sweep in a session of its own."""
    return subprocess.Popen(
        SWEEP,
        cwd=project,
        env=os.environ | environment() | {"PARROTFLOW_STAGES_AT_ONCE": str(slots)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def swept(project: Path, slots: int) -> tuple[float, str]:
    """Seconds of a sweep from its start to its tables, and what it said."""
    began = time.perf_counter()
    process = start(project, slots)
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the sweep failed:\n{said[-3000:]}")
    return time.perf_counter() - began, said


def require_shared_once(said: str, cells: int) -> None:
    """Exit unless the sweeps have said that the shared stage ran once and each cell's own once."""
    ran = Counter(re.findall(r": (\w+) ran in ", said))
    if ran != {"tokenize": 1, "train": cells}:
        raise SystemExit(f"stages that ran: {dict(ran)}")


def speed(timings: dict[int, list[float]], seconds: float) -> Measurement:
    """Two slots compared with one."""
    return compare(
        f"sweep of 12 cells on 2 slots, each sleeping {seconds:g} s, with one shared stage",
        timings[2],
        timings[1],
        peer_name="one cell after another",
        unit="s",
        higher_is_better=False,
        libraries=LIBRARIES,
    )


def surviving(folder: Path, chance: Random, kills: int) -> Measurement:
    """Sweeps that were killed once and ended with the tables of an undisturbed one."""
    undisturbed = make_project(folder / "undisturbed", widths=2, seconds=1.0)
    seconds, _ = swept(undisturbed, 2)
    expected, equal = tables(undisturbed), 0
    for number in range(kills):
        project = make_project(folder / f"killed-{number}", widths=2, seconds=1.0)
        process = start(project, 2)
        after = chance.uniform(0.0, 0.95) * seconds
        time.sleep(after)
        alive = members(project)
        everything = chance.random() < 0.5
        for one in alive if everything else chance.sample(alive, min(1, len(alive))):
            kill(one)
        process.communicate()
        repeat(project)
        same = tables(project) == expected
        equal += same
        what = f"{'all' if everything else 'one'} of {len(alive)} processes after {after:.1f} s"
        print(f"kill {number}: {what}: {'equal' if same else 'DIFFERENT'}", flush=True)
    figure = compare(
        f"sweeps that ended with the same tables, of {kills} killed at a random moment",
        [float(equal)],
        None,
        unit="sweeps",
        higher_is_better=True,
        libraries=LIBRARIES,
    )
    return replace(figure, runs=kills)


def repeat(project: Path) -> None:
    """Repeat the command until it succeeds. A run of which a killed one has left processes waits for them."""
    for _ in range(ATTEMPTS):
        process = start(project, 2)
        said, _ = process.communicate()
        if process.returncode == 0:
            return
        print(said[-1000:], flush=True)


def tables(project: Path) -> dict[str, bytes]:
    """The tables, without the page and the JSON, which name commits."""
    folder = project / "experiments/toy/small/tables"
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*")) if file.suffix in (".md", ".tex", ".csv")}


if __name__ == "__main__":
    main()
