"""Random faults on the real pipeline: does every run end with the results of an undisturbed one, or say why not?

    python -m benchmarks.campaign [--quick] [--trials 220] [--minutes 60] [--at-once 2] [--trial N]

A trial copies a small project, starts `parrotflow run` on some work, and injects one of the kinds of fault in
benchmarks/runs/faults.py. Afterwards it repeats the same command until it succeeds, with nothing done by hand. A trial
ends

    equal      the results and dvc.lock are byte for byte those of an undisturbed run
    wrong      they are not, or dvc.lock recorded what was not computed; there must be none
    unclear    a traceback, a failure without a message, a hang, something left running, or no success in six attempts

Its number seeds all random choices of a trial: `--trial N` repeats one. Each trial is a line of `trials.jsonl`. An
interrupted campaign continues after the trials that are done; `--afresh` starts over.
"""

import argparse
import json
import math
import statistics
import subprocess
import threading
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from benchmarks.measurements import RESULTS, Measurement, compare, record
from benchmarks.runs.faults import KINDS, Kind, can_mount
from benchmarks.runs.small_pipeline import ROOT, WORKS, Projects, copied_code, remove
from benchmarks.runs.trial import MISSED_AT_MOST, FailedTrialError, MissedError, Trial

FOLDER = Path(".parrotflow/campaign")
TRIALS = "trials.jsonl"

EARLIER = 0.6
"""The next instant, as a share of that of a fault that came too late."""

LIBRARIES = ["dvc", "prefect", "torch"]


@dataclass(frozen=True)
class Line:
    """The record of a trial."""

    number: int
    kind: str
    work: str
    outcome: str
    refusals: int
    seconds_lost: float
    stages_again: int
    told: list[str]
    message: str
    commit: str


def main() -> None:
    """Run the trials and record their outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one trial of each kind; nothing is recorded")
    parser.add_argument("--trials", type=int, default=220)
    parser.add_argument("--trial", type=int, help="only this one")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no trial after this many minutes")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--afresh", action="store_true")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    log = folder / ("quick.jsonl" if arguments.quick or arguments.trial is not None else TRIALS)
    if arguments.afresh or log.name != TRIALS:
        log.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    done = read(log)
    numbers = range(len(KINDS)) if arguments.quick else range(arguments.trials)
    wanted = [arguments.trial] if arguments.trial is not None else numbers
    todo = [number for number in wanted if number not in {line.number for line in done}]
    lines = done + run_trials(todo, folder, log, arguments.at_once, time.monotonic() + 60 * arguments.minutes)
    record("campaign", summary(lines), RESULTS, quick=log.name != TRIALS)
    if failed := [line for line in lines if line.outcome in ("wrong", "unclear")]:
        raise SystemExit("\n".join(f"trial {line.number} ({line.kind}): {line.outcome}" for line in failed))


def read(log: Path) -> list[Line]:
    """The trials that are done."""
    if not log.exists():
        return []
    return [Line(**json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]


def run_trials(
    numbers: Iterable[int], folder: Path, log: Path, at_once: int, until: float, projects: Projects | None = None
) -> list[Line]:
    """Run trials, and write a line of each as it ends. None is started after `until`, a time of the monotonic clock."""
    commit = observe_commit()
    projects = projects or Projects(folder / copied_code())
    writing, mounts = threading.Lock(), can_mount(folder)

    def one(number: int) -> Line | None:
        kind = KINDS[number % len(KINDS)]
        if time.monotonic() > until:
            return None
        if kind.name == "disk-full" and not mounts:
            print(f"{number:4} {kind.name}: skipped, this user may not mount a file system", flush=True)
            return None
        line = run_trial(number, kind, projects, commit)
        with writing, log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(line)) + "\n")
        told = "; ".join(line.told)
        lost = f"{line.seconds_lost:.1f} s and {line.stages_again} stages lost"
        print(
            f"{number:4} {kind.name}, {line.work}: {told}: {line.outcome}, {line.refusals} refused, {lost}", flush=True
        )
        if line.message:
            print(line.message, flush=True)
        return line

    with ThreadPoolExecutor(at_once) as pool:
        try:
            return [line for line in pool.map(one, numbers) if line is not None]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def observe_commit() -> str:
    """The commit, with a `+` where files differ from it."""
    head, changes = (
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout
        for words in (["rev-parse", "--short=12", "HEAD"], ["diff", "HEAD"])
    )
    return head.decode().strip() + ("+" if changes else "")


def run_trial(number: int, kind: Kind, projects: Projects, commit: str) -> Line:
    """One trial, in a new copy of the project until the fault comes in time."""
    for missed in range(MISSED_AT_MOST + 1):
        chance = Random(f"campaign {number}")
        work = WORKS[chance.choice(kind.works)]
        trial = Trial(number, projects, work, chance, pace=EARLIER**missed)
        outcome, message = "equal", ""
        try:
            kind.disturb(trial)
            if not trial.finished:
                trial.finish()
        except MissedError:
            outcome = "missed"
        except FailedTrialError as failure:
            outcome, message = failure.outcome, str(failure)
        except (Exception, SystemExit):  # a mistake in the campaign itself does not end it
            outcome, message = "unclear", traceback.format_exc()
        finally:
            trial.end()
        if outcome != "missed":
            break
    if outcome == "equal":
        remove(trial.folder)
    return Line(
        number=number,
        kind=kind.name,
        work=work.name,
        outcome=outcome,
        refusals=trial.refusals,
        seconds_lost=round(trial.seconds_lost, 2),
        stages_again=trial.stages_again,
        told=trial.told,
        message=message,
        commit=commit,
    )


def summary(lines: list[Line]) -> list[Measurement]:
    """For each kind of fault what became of its trials, and the work lost."""
    counted = [line for line in lines if line.outcome != "missed"]
    commits = ", ".join(sorted({line.commit for line in counted}))
    groups = [(kind.what, [line for line in counted if line.kind == kind.name]) for kind in KINDS]
    found = [figures(what, group, commits) for what, group in [*groups, ("all kinds", counted)] if group]
    return [figure for group in found for figure in group]


def figures(what: str, lines: list[Line], commits: str) -> list[Measurement]:
    """Trials with equal results; how many were wrong, unclear or refused at first, and the work lost."""
    counts = {name: sum(line.outcome == name for line in lines) for name in ("equal", "wrong", "unclear")}
    values = {
        "equal results": (counts["equal"], f"of {len(lines)}"),
        "wrong": (counts["wrong"], ""),
        "unclear": (counts["unclear"], ""),
        "refused at first": (sum(line.refusals > 0 for line in lines), ""),
        "lost, median": (round(statistics.median(line.seconds_lost for line in lines), 1), "s"),
        "stages again, mean": (round(statistics.mean(line.stages_again for line in lines), 1), ""),
    }
    found = [
        compare(f"{what}: {name}", [float(value)], None, unit=unit, higher_is_better=True, libraries=LIBRARIES)
        for name, (value, unit) in values.items()
    ]
    return [replace(one, runs=len(lines), versions=one.versions | {"commit": commits}) for one in found]


if __name__ == "__main__":
    main()
