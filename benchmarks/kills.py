"""Kill -9 at random instants, each followed by a plain rerun: does every run end with the same weights?

    python -m benchmarks.kills [--quick] [--kills 100] [--minutes 60]

The victim is the command, the launcher or a worker, in turn; the instant is random over the whole life of a run, so
imports, steps, checkpoint writes and the export are all hit; half of the runs have two processes. Both halves go at
once: nothing here is a measure of time. When the minutes are over, the kills until then are recorded.
"""

import argparse
import math
import random
import shutil
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil

from benchmarks.measurements import Measurement, compare, record
from benchmarks.runs.training import TINY_MODEL, run_training, start_training, training_project
from stages.formats.model_folder import weights_sha256

LAUNCHES = ("cpu", "cpu_2")
VICTIMS = ("command", "launcher", "worker")


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=math.inf)
    arguments = parser.parse_args()
    kills = 6 if arguments.quick else arguments.kills
    with tempfile.TemporaryDirectory() as folder:
        until = time.monotonic() + 60 * arguments.minutes
        campaigns = partial(campaign, Path(folder), kills=kills // len(LAUNCHES), until=until)
        with ThreadPoolExecutor(len(LAUNCHES)) as at_once:
            figures = list(at_once.map(campaigns, LAUNCHES))
    record("kills", figures, quick=arguments.quick)


def campaign(folder: Path, launch: str, kills: int, until: float) -> Measurement:
    """Kill runs of one launch preset until `kills` have been hit; each is then run to its end and compared.

    No further one is begun after `until`, by the monotonic clock.
    """
    project = training_project(
        folder / launch,
        model=TINY_MODEL,
        sequence_length=64,
        max_steps=60,
        checkpoint_every_steps=3,
        evaluation_sequences=8,
    )
    began = time.perf_counter()
    run_training(project, PARROTFLOW_LAUNCH=launch)
    lifetime = time.perf_counter() - began
    reference = weights_sha256(project / "model")
    chance = random.Random(0)
    hit = same = 0
    while hit < kills and time.monotonic() < until:
        for made in (".parrotflow", "model", "reports"):
            shutil.rmtree(project / made)
        victim = VICTIMS[hit % len(VICTIMS)]
        began = time.monotonic()
        if not kill(project, launch, victim, chance.uniform(0.2, 1.0) * lifetime):
            # It came to its end before: the machine is faster now than it was at first.
            lifetime = min(lifetime, time.monotonic() - began)
            continue
        hit += 1
        run_training(project, PARROTFLOW_LAUNCH=launch)
        same += weights_sha256(project / "model") == reference
        print(f"{launch}: {victim} killed, {same} of {hit} with the same weights", flush=True)
    return compare(
        f"runs by launch/{launch} with the reference weights after kill -9, of {hit}",
        [float(same)],
        None,
        unit="runs",
        higher_is_better=True,
        libraries=["torch", "accelerate"],
    )


def kill(project: Path, launch: str, victim: str, after_seconds: float) -> bool:
    """Start a run and kill one of its processes; whether it came to that before the run's end."""
    process = start_training(project, PARROTFLOW_LAUNCH=launch, PARROTFLOW_RESTARTS="0")
    try:
        process.wait(after_seconds)
    except subprocess.TimeoutExpired:
        target = find(process, victim)
        if target is not None:
            target.send_signal(signal.SIGKILL)
        process.wait()
        return target is not None
    return False


def find(process: "subprocess.Popen[bytes]", victim: str) -> psutil.Process | None:
    """The process of that role, where it lives."""
    try:
        command = psutil.Process(process.pid)
        members = {
            "command": [command],
            "launcher": command.children(),
            "worker": [worker for launcher in command.children() for worker in launcher.children()],
        }[victim]
        alive = [member for member in members if member.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return None
    return alive[0] if alive else None


if __name__ == "__main__":
    main()
