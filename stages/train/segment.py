"""Recompute the steps between two checkpoints of a run and compare: `python -m stages.train.segment`.

    python -m stages.train.segment --from 400 --to 500

This checks a long run in minutes. It loads one checkpoint, trains to a later one with the recorded execution settings,
and compares the hashes of the states. Equal hashes mean that the later checkpoint follows from the earlier one, bit for
bit. Exit codes: 0 equal, 3 different, 2 could not check. It uses the parameters and the data of the working tree, and
changes neither the run's checkpoints nor its results.

The trainer runs in a temporary project with links to the inputs and the first checkpoint. A run that was stopped and
continued has several sessions, which may differ in threads or processes, so a segment lies within one session. A
session begins at a checkpoint.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.formats.model_folder import CHECKPOINTS, MODEL
from stages.formats.reports import REPORTS
from stages.formats.revision.execution import (
    ISA_LIMITS,
    TRAIN_EXECUTION,
    Execution,
    Session,
    differing_facts,
    is_computing,
    recorded_settings,
)
from stages.formats.tokens import TOKENS, TRAIN, TokenStore
from stages.runtime.errors import EXIT_CONTINUE, EXIT_TERMINATED, EXIT_USER_ERROR, STATE_DIR, UserError
from stages.runtime.launch import LAUNCH, SEGMENT, launch_config
from stages.runtime.section import PARAMS_FILE, read_section, read_yaml, write_yaml
from stages.runtime.stage import run_stage
from stages.runtime.stage_code import require_locked
from stages.train.checkpoint.identity import TRAIN_LIBRARIES, fingerprint, identity, identity_changes
from stages.train.checkpoint.manifest import IDENTITY, content_sha256, fault, read_manifest
from stages.train.checkpoint.mirror import MIRROR
from stages.train.compute.hardware import MICRO_BATCH, resolve_precision
from stages.train.launcher import launch
from stages.train.monitoring.params import MonitoringParams
from stages.train.params import TrainParams

EXIT_DIFFERENT = 3
"""Exit code if the steps do not lead to the recorded state."""


@dataclass(frozen=True)
class Segment:
    """The steps after `first`, up to and including `last`, which one session executed."""

    record: Execution
    session: Session
    checkpoints: Path
    """The folder of the run's checkpoints."""
    first: int
    last: int

    @property
    def start(self) -> Path | None:
        """The checkpoint before the first step; None at the beginning of the run."""
        return self.checkpoints / f"step-{self.first:08d}" if self.first else None

    @property
    def max_steps(self) -> int:
        """The steps of the whole run."""
        return self.record.sessions[-1].last_step

    @property
    def recorded(self) -> dict[int, str]:
        """Step -> content hash of each recorded checkpoint in the segment."""
        return {step: self.record.checkpoints[step] for step in sorted(self.record.checkpoints) if step in self.steps}

    @property
    def steps(self) -> range:
        """The steps of the segment, counted from 1."""
        return range(self.first + 1, self.last + 1)


@dataclass(frozen=True)
class SegmentResult:
    """The result of recomputing the steps."""

    session: Session
    contents: dict[int, str]
    """Step -> content hash of the checkpoint."""
    weights: str | None
    """The sha256 of the exported weights if the segment ends with the run."""


def main() -> None:
    """Check one segment and print the verdict."""
    parser = argparse.ArgumentParser(prog="python -m stages.train.segment", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--from", type=int, required=True, dest="start", help="step of a kept checkpoint, or 0")
    parser.add_argument("--to", type=int, required=True, dest="stop", help="step of a later recorded checkpoint")
    parser.add_argument("--record", type=Path, default=TRAIN_EXECUTION, help="the record of the run's execution")
    parser.add_argument("--checkpoints", type=Path, help=f"the run's folder of checkpoints; default: {CHECKPOINTS}/RUN")
    arguments = parser.parse_args()
    began = time.monotonic()
    segment = plan(arguments.record, arguments.checkpoints, arguments.start, arguments.stop)
    equal = print_comparison(segment, recompute(segment))
    verdict = "equal" if equal else "different"
    outcome = "lead to the recorded state, bit for bit" if equal else "do not lead to the recorded state"
    steps = f"steps {segment.first + 1} to {segment.last}, computed again, {outcome}"
    print(f"{verdict}: {steps} ({time.monotonic() - began:.0f} s)", flush=True)
    sys.exit(0 if equal else EXIT_DIFFERENT)


def plan(record: Path, checkpoints: Path | None, first: int, last: int) -> Segment:
    """The segment between two steps. Raises UserError if a checkpoint is missing or no single session executed it."""
    execution = Execution.find(record)
    if execution is None or not execution.sessions:
        raise UserError(f"{record}: holds no record of how a training was executed; a finished training writes it")
    folder = (checkpoints or CHECKPOINTS / execution.fingerprint).absolute()
    recorded = execution.checkpoints
    names = (path.name.removeprefix("step-") for path in folder.glob("step-*"))
    kept = sorted(int(name) for name in names if name.isdecimal())
    usable = steps_text([0, *(step for step in kept if step in recorded)])
    if not 0 <= first < last:
        raise UserError(f"--from {first} --to {last}: --from must be at least 0, and --to later")
    if last not in recorded:
        raise UserError(
            f"--to {last}: no checkpoint is recorded at this step; {record} has {steps_text(sorted(recorded))}"
        )
    if first and first not in recorded:
        raise UserError(f"--from {first}: {record} has no such checkpoint; choose from: {usable}")
    if first and first not in kept:
        raise UserError(
            f"--from {first}: its checkpoint is no longer in {folder}; choose from: {usable} "
            "(monitoring.milestone_every_steps and monitoring.checkpoints_kept keep more)"
        )
    for session in execution.sessions:
        if session.first_step <= first + 1 and last <= session.last_step:
            return Segment(execution, session, folder, first, last)
    sessions = ", ".join(f"{session.first_step - 1}-{session.last_step}" for session in execution.sessions)
    raise UserError(
        f"--from {first} --to {last}: no single session executed these steps; the run was executed as {sessions}: "
        "check a segment within one of them"
    )


def steps_text(steps: list[int]) -> str:
    """Steps separated by commas."""
    return ", ".join(map(str, steps)) or "none"


def recompute(segment: Segment) -> SegmentResult:
    """Train the segment in a temporary project. Raises UserError if the steps cannot be computed."""
    require_locked(*TRAIN_LIBRARIES)
    params = read_section("train", TrainParams)
    check_run(segment, params)
    params = params.model_copy(update={"export_steps": []})
    kept: dict[str, Any] = {"checkpoints_kept": 1, "milestone_every_steps": None}
    monitoring = read_section("monitoring", MonitoringParams).model_copy(
        update=kept | {"trackers": [], "evaluate_every_steps": params.max_steps}
    )
    STATE_DIR.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="segment-", dir=STATE_DIR.absolute()) as scratch:
        link_inputs(segment, params, monitoring, Path(scratch))
        execute_as_recorded(segment, Path(scratch))
        print(f"computing the steps {segment.first + 1} to {segment.last} again", flush=True)
        with chdir(scratch):
            config = launch_config()
            here = resolve_precision(params.precision, config.device_type)
            if not segment.start and here != segment.session.precision:
                raise UserError(
                    f"--from 0: the run began in {segment.session.precision}, and train.precision: auto is {here} on "
                    "this machine; begin at a kept checkpoint, or use a machine of the same kind"
                )
            code = launch(config, params)
            if code == EXIT_USER_ERROR:
                raise UserError("the steps could not be computed; see above")
            if code:
                sys.exit(EXIT_TERMINATED if code == EXIT_CONTINUE else code)
            return read_result(segment)


def check_run(segment: Segment, params: TrainParams) -> None:
    """Raise UserError if the working tree is of another run, or if the first checkpoint is damaged or another."""
    store = TokenStore(TOKENS / TRAIN)
    run = identity(params, store)
    if fingerprint(run) != segment.record.fingerprint:
        known = segment.checkpoints / IDENTITY
        changes = identity_changes(known, run) if known.exists() else []
        raise UserError(
            f"the working tree is not that of the recorded run ({'; '.join(changes) or 'its fingerprint differs'}); "
            "check out the run's commit and data first, as `parrotflow reproduce` does"
        )
    store.verify()
    if segment.start:
        problem, recorded = fault(segment.start), segment.record.checkpoints[segment.first]
        if not problem and (content := content_sha256(read_manifest(segment.start).sha256)) != recorded:
            problem = f"it is not the recorded one: found content {content[:16]}, recorded {recorded[:16]}"
        if problem:
            raise UserError(f"{segment.start}: {problem}")


def link_inputs(segment: Segment, params: TrainParams, monitoring: MonitoringParams, scratch: Path) -> None:
    """Write the parameters into the temporary project, and link its inputs and the checkpoint that it starts from."""
    for path in Path().absolute().iterdir():
        if path.name not in map(str, (STATE_DIR, MODEL, REPORTS, PARAMS_FILE)):  # the temporary project has its own
            (scratch / path.name).symlink_to(path)
    values = {"train": params.model_dump(mode="json"), "monitoring": monitoring.model_dump(mode="json")}
    (scratch / PARAMS_FILE).write_text(write_yaml(values), encoding="utf-8")
    run = scratch / CHECKPOINTS / segment.record.fingerprint
    run.mkdir(parents=True)
    if segment.start:
        (run / segment.start.name).symlink_to(segment.start)
    if started_from := params.start_checkpoint:
        link = scratch / started_from
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(started_from.absolute())


def execute_as_recorded(segment: Segment, scratch: Path) -> None:
    """Set the environment to the recorded settings, and remove all others that could change the result.

    Limits on instructions stay if none are recorded, so that a newer processor can compute as an older one did. All
    processes of a session of several machines run on this one.
    """
    session = segment.session
    for name in list(os.environ):
        if name == MIRROR or (is_computing(name) and (session.isa_limits or name not in ISA_LIMITS)):
            del os.environ[name]
    os.environ |= recorded_settings(session) | {
        MICRO_BATCH: str(session.micro_batch_size),
        SEGMENT: ",".join(map(str, [segment.first, *segment.recorded])),
    }
    if session.launch is not None:
        file = scratch / "launch-recorded.yaml"
        file.write_text(json.dumps(read_yaml(session.launch, trusted=False) | {"num_machines": 1}), encoding="utf-8")
        os.environ[LAUNCH] = str(file)


def read_result(segment: Segment) -> SegmentResult:
    """Read what the trainer wrote to the current folder. Raises UserError if the last checkpoint is missing."""
    checkpoint = CHECKPOINTS / segment.record.fingerprint / f"step-{segment.last:08d}"
    if problem := fault(checkpoint):
        raise UserError(f"the state after step {segment.last} could not be written ({problem}); see above")
    manifest = read_manifest(checkpoint)
    contents = {step: sha256 for step, sha256 in manifest.contents.items() if step in segment.steps}
    execution = Execution.find() if segment.last == segment.max_steps else None
    return SegmentResult(manifest.sessions[-1], contents, execution.weights_sha256 if execution else None)


def print_comparison(segment: Segment, result: SegmentResult) -> bool:
    """Print the hashes up to the first that differs, then execution facts that differ. True if all are equal."""
    contents = segment.recorded.items()
    hashes = [(f"checkpoint of step {step}", sha256, result.contents.get(step)) for step, sha256 in contents]
    if segment.last == segment.max_steps:
        hashes.append(("weights", segment.record.weights_sha256, result.weights))
    for what, recorded, here in hashes:
        if recorded == here:
            print(f"{what}: {recorded[:16]} recorded, equal")
            continue
        print(f"{what}: {recorded[:16]} recorded, different: {(here or 'none')[:16]} here")
        differences = list(differing_facts(segment.session, result.session))
        for fact, then, now in differences:
            print(f"execution: {fact}: recorded {then}, here {now}")
        if not differences:
            print(
                "no recorded fact of the execution differs: the record or a checkpoint was changed, or runs cannot be "
                "repeated bit for bit on this hardware"
            )
        return False
    return True


if __name__ == "__main__":
    run_stage(main)
