"""Compute the steps between two checkpoints of a run again, and compare: `python -m stages.train.segment`.

    python -m stages.train.segment --from 400 --to 500

A long run is checked in minutes: the state at one checkpoint is loaded and trained to a later one, as it is on record
that these steps were executed. The same content there means that the checkpoint follows from the one before, bit for
bit. Exits with 0 where it does, 1 where it does not, 2 where it could not be checked. It works on the parameters and
the data of the working tree, and changes neither the run's checkpoints nor its results.

The trainer does it, as ever, in a folder of its own that links to all the project's inputs and to the first checkpoint.
A run that was stopped and continued has several sessions, which may have had other threads or processes. So a segment
is cut into pieces, each within one session; where two pieces meet there was a checkpoint.
"""

import argparse
import os
import sys
import tempfile
import time
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from stages.formats.model_folder import CHECKPOINTS, MODEL
from stages.formats.reports import REPORTS
from stages.formats.revision.execution import TRAIN_EXECUTION, ComparedHash, Execution, SegmentReport, Session
from stages.formats.splits import TRAIN, VALIDATION
from stages.formats.tokens import TOKENS, TokenStore
from stages.runtime.entry import EXIT_CONTINUE, EXIT_TERMINATED, EXIT_USER_ERROR, STATE_DIR, UserError, run_stage
from stages.runtime.launch import LAUNCH, SEGMENT, launch_config
from stages.runtime.section import read_section
from stages.runtime.stage_code import require_locked
from stages.train.checkpoint.checkpoints import CONTINUE
from stages.train.checkpoint.manifest import IDENTITY, content_sha256, fault, read_manifest
from stages.train.checkpoint.mirror import MIRROR
from stages.train.checkpoint.resume import LIBRARIES, changes_since, fingerprint, identity
from stages.train.hardware import COMPILE, MICRO_BATCH
from stages.train.launcher import RESTARTS, launch
from stages.train.monitoring.results import ISA_LIMITS, differing_facts, is_computing
from stages.train.params import TrainParams

EXIT_CODES = {"equal": 0, "different": 1, "cannot": EXIT_USER_ERROR}

RESULTS = (STATE_DIR, MODEL, REPORTS)
"""Of the project; the folder in which a segment is computed has its own."""

NO_CAUSE = """No recorded fact of the execution differs: the record or a checkpoint was changed, or runs cannot be \
repeated bit for bit on this hardware"""


@dataclass(frozen=True)
class Piece:
    """The steps after `first`, up to and with `last`, as one session executed them."""

    session: Session
    first: int
    last: int

    @property
    def steps(self) -> range:
        """Of which each leads to a state of the piece."""
        return range(self.first + 1, self.last + 1)


@dataclass(frozen=True)
class Segment:
    """The steps after `first`, up to and with `last`."""

    record: Execution
    checkpoints: Path
    """The run's folder of them."""
    first: int
    last: int

    @property
    def pieces(self) -> list[Piece]:
        """Its pieces, in order."""
        return [
            Piece(session, max(self.first, session.first_step - 1), min(self.last, session.last_step))
            for session in self.record.sessions
            if session.first_step <= self.last and session.last_step > self.first
        ]

    @property
    def start(self) -> Path | None:
        """The checkpoint that it begins with; None where it begins with the run."""
        return self.checkpoints / f"step-{self.first:08d}" if self.first else None

    @property
    def max_steps(self) -> int:
        """Of the run."""
        return self.record.sessions[-1].last_step


@dataclass
class SegmentResult:
    """What the steps led to this time."""

    sessions: list[Session] = field(default_factory=list)
    """How each piece was executed."""
    contents: dict[int, str] = field(default_factory=dict)
    """Step -> content of the checkpoint, at each recorded step."""
    weights: str | None = None
    """The exported weights' sha256, where the segment ends with the run."""


def main() -> None:
    """Check one segment, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m stages.train.segment", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--from", type=int, required=True, dest="start", help="step of a kept checkpoint, or 0")
    parser.add_argument("--to", type=int, required=True, dest="stop", help="step of a later recorded checkpoint")
    parser.add_argument("--record", type=Path, default=TRAIN_EXECUTION, help="how the run was executed")
    parser.add_argument("--checkpoints", type=Path, help=f"the run's folder of checkpoints; default: {CHECKPOINTS}/RUN")
    parser.add_argument("--report", type=Path, help="write the verdict to this file, as JSON")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="another setting than recorded"
    )
    arguments = parser.parse_args()
    began = time.monotonic()
    try:
        segment = plan(arguments.record, arguments.checkpoints, arguments.start, arguments.stop)
        report = judge(segment, recompute(segment, dict(setting.partition("=")[::2] for setting in arguments.set)))
    except UserError as error:
        report = SegmentReport(
            verdict="cannot", reason=str(error), from_step=arguments.start, to_step=arguments.stop, seconds=0.0
        )
    report = report.model_copy(update={"seconds": round(time.monotonic() - began, 1)})
    print_verdict(report)
    if arguments.report:
        report.write(arguments.report)
    sys.exit(EXIT_CODES[report.verdict])


def recompute(segment: Segment, settings: dict[str, str]) -> SegmentResult:
    """Start the trainer for each piece of the segment, up to one that does not lead to what is recorded.

    `settings`: environment variables that are to be other than recorded.
    """
    require_locked(*LIBRARIES)
    params = read_section("train", TrainParams).model_copy(update={"precision": segment.pieces[0].session.precision})
    check_run(segment, params)
    # Nothing is kept and shown but what leads to the end, and the start fits: points of the curves as its run had them.
    points = params if segment.start is None else read_manifest(segment.start)
    params = params.model_copy(
        update={
            **{"checkpoints_kept": 1, "milestone_every_steps": None, "trackers": [], "export_steps": []},
            "log_every_steps": points.log_every_steps,
            "evaluate_every_steps": points.evaluate_every_steps * params.max_steps,
        }
    )
    found, recorded = SegmentResult(), segment.record.checkpoints
    STATE_DIR.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="segment-", dir=STATE_DIR.absolute()) as scratch:
        link_inputs(segment, Path(scratch))
        for piece in segment.pieces:
            execute_as_recorded(piece, recorded, Path(scratch))
            os.environ.update(settings)
            print(f"computing the steps {piece.first + 1} to {piece.last} again", flush=True)
            with chdir(scratch):
                code = launch(launch_config(), params)
                if code == EXIT_USER_ERROR:
                    raise UserError("the steps could not be computed; see above")
                if code:
                    sys.exit(EXIT_TERMINATED if code == EXIT_CONTINUE else code)
                read_found(segment, piece, found)
            if found.contents[piece.last] != recorded[piece.last]:
                break
    return found


def plan(record: Path, checkpoints: Path | None, first: int, last: int) -> Segment:
    """The segment between two steps. Raises UserError where the record or the first checkpoint does not have it."""
    execution = Execution.find(record)
    if execution is None or not execution.sessions:
        raise UserError(f"{record}: holds no record of how a training was executed; a finished training writes it")
    folder = (checkpoints or CHECKPOINTS / execution.fingerprint).absolute()
    recorded = execution.checkpoints
    names = (path.name.removeprefix("step-") for path in folder.glob("step-*"))
    kept = sorted(int(name) for name in names if name.isdecimal())  # whole or not
    usable = listed([0, *(step for step in kept if step in recorded)])
    if not 0 <= first < last:
        raise UserError(f"--from {first} --to {last}: a segment goes from a step to a later one")
    if last not in recorded:
        raise UserError(f"--to {last}: {record} has the checkpoints of the steps {listed(sorted(recorded))}")
    if first and first not in recorded:
        raise UserError(f"--from {first}: {record} has no such checkpoint; of those that it has {usable} are kept")
    if first and first not in kept:
        raise UserError(
            f"--from {first}: its checkpoint is no longer in {folder}, {usable} are "
            "(train.milestone_every_steps and train.checkpoints_kept keep more)"
        )
    for session in execution.sessions:
        if session.continued_from and first < session.first_step - 1:
            raise UserError(
                f"--from {first}: the steps up to {session.first_step - 1} were computed by other code (training "
                f"{session.continued_from}), which this one does not repeat; use a later step"
            )
    segment = Segment(execution, folder, first, last)
    begins = [*(piece.first for piece in segment.pieces), last]
    ends = [first, *(piece.last for piece in segment.pieces)]
    if begins != ends or any(step and step not in recorded for step in ends):
        raise UserError(f"{record}: does not say how all of the steps {first + 1} to {last} were executed")
    return segment


def listed(steps: list[int]) -> str:
    """Steps in words."""
    return ", ".join(map(str, steps)) or "none"


def check_run(segment: Segment, params: TrainParams) -> None:
    """Raise UserError where the working tree would compute another run, or where its first checkpoint is not it."""
    stores = [TokenStore(TOKENS / TRAIN), TokenStore(TOKENS / VALIDATION)]
    run = identity(params, stores)
    if fingerprint(run) != segment.record.fingerprint or params.max_steps != segment.max_steps:
        known = segment.checkpoints / IDENTITY
        changes = changes_since(known, run) if known.exists() else []
        if params.max_steps != segment.max_steps:
            changes.append(f"train.max_steps: {segment.max_steps} -> {params.max_steps}")
        raise UserError(
            f"the working tree is not that of the recorded run ({'; '.join(changes) or 'its fingerprint differs'}); "
            "check out the run's commit and data first, as `parrotflow reproduce` does"
        )
    stores[0].verify()
    if segment.start:
        problem, recorded = fault(segment.start), segment.record.checkpoints[segment.first]
        if not problem and (content := content_sha256(segment.start)) != recorded:
            problem = f"it is not the recorded one: its content is {content[:16]}, recorded is {recorded[:16]}"
        if problem:
            raise UserError(f"{segment.start}: {problem}")


def link_inputs(segment: Segment, scratch: Path) -> None:
    """Make a project in which the trainer finds this one's inputs and continues from the segment's start."""
    for path in Path().absolute().iterdir():
        if path.name not in map(str, RESULTS):
            (scratch / path.name).symlink_to(path)
    run = scratch / CHECKPOINTS / segment.record.fingerprint
    run.mkdir(parents=True)
    if segment.start:
        (run / segment.start.name).symlink_to(segment.start)


def execute_as_recorded(piece: Piece, recorded: dict[int, str], scratch: Path) -> None:
    """Let this process's children compute as a session did: its settings, and none besides that could matter.

    Limits on instructions stay where the record has none: they let a newer processor compute as an older one did.
    A session of several machines is started on this one, with all of its processes.
    """
    session = piece.session
    for name in list(os.environ):
        if name in (MIRROR, CONTINUE) or (is_computing(name) and (session.isa_limits or name not in ISA_LIMITS)):
            del os.environ[name]
    os.environ |= session.environment | session.isa_limits
    os.environ |= {
        "OMP_NUM_THREADS": str(session.threads_per_process),
        COMPILE: "on" if session.compiled else "off",
        MICRO_BATCH: str(session.micro_batch_size),
        RESTARTS: "0",
        SEGMENT: ",".join(map(str, [piece.first, *(step for step in sorted(recorded) if step in piece.steps)])),
    }
    if session.launch is not None:
        file = scratch / f"launch-{piece.first}.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(session.launch) | {"num_machines": 1}), encoding="utf-8")
        os.environ[LAUNCH] = str(file)


def read_found(segment: Segment, piece: Piece, found: SegmentResult) -> None:
    """Add what the trainer left in the current folder. Raises UserError where it has no checkpoint of the last step."""
    checkpoint = CHECKPOINTS / segment.record.fingerprint / f"step-{piece.last:08d}"
    if problem := fault(checkpoint):
        raise UserError(f"the state after step {piece.last} could not be written ({problem}); see above")
    manifest = read_manifest(checkpoint)
    found.sessions.append(manifest.sessions[-1])
    found.contents |= {step: sha256 for step, sha256 in manifest.contents.items() if step in piece.steps}
    if piece.last == segment.max_steps and (execution := Execution.find()):
        found.weights = execution.weights_sha256


def judge(segment: Segment, found: SegmentResult) -> SegmentReport:
    """The verdict, from what the segment led to: all hashes up to the first one that differs."""
    record = segment.record
    hashes = [(f"checkpoint of step {step}", record.checkpoints[step], own) for step, own in found.contents.items()]
    if found.weights:
        hashes.append(("weights", record.weights_sha256, found.weights))
    compared: list[ComparedHash] = []
    for what, recorded, own in hashes:
        compared.append(ComparedHash(what=what, recorded=recorded, found=own))
        if recorded != own:
            break
    executed = zip(segment.pieces, found.sessions, strict=False)
    differences = [one for piece, session in executed for one in differing_facts(piece.session, session)]
    equal = compared[-1].recorded == compared[-1].found
    reason = f"steps {segment.first + 1} to {segment.last}, computed again, "
    if equal:
        reason += "lead to the recorded state, bit for bit"
    else:
        reason += f"do not lead to the recorded state; the first difference is in the {compared[-1].what}. "
        causes = ", ".join(f"{one.fact} ({one.recorded} recorded, {one.here} here)" for one in differences)
        reason += f"Likely causes: {causes}" if causes else NO_CAUSE
    return SegmentReport(
        verdict="equal" if equal else "different",
        reason=reason,
        from_step=segment.first,
        to_step=segment.last,
        compared=compared,
        differences=differences,
        seconds=0.0,
    )


def print_verdict(report: SegmentReport) -> None:
    """The verdict in lines; why it could not be checked goes to standard error."""
    for one in report.compared:
        outcome = "equal" if one.recorded == one.found else f"different, {one.found[:16]} now"
        print(f"{one.what}: {one.recorded[:16]} recorded, {outcome}")
    stream = sys.stderr if report.verdict == "cannot" else sys.stdout
    prefix = "error" if report.verdict == "cannot" else report.verdict
    print(f"{prefix}: {report.reason} ({report.seconds:.0f} s)", file=stream, flush=True)


if __name__ == "__main__":
    run_stage(main)
