"""`--segment`: only the steps between two recorded checkpoints are computed again, by the training's own module."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.reproduce.commands import failed, run_python
from flows.reproduce.compare.verdict import BIT_IDENTICAL, NOT_REPRODUCED
from flows.reproduce.request import ReproduceOptions
from flows.reproduce.revision import RecordedRevision
from stages.formats.model_folder import weight_files
from stages.formats.revision.execution import SegmentReport
from stages.formats.revision.provenance import EXECUTION, RECORDED_LOCK
from stages.runtime.entry import STATE_DIR, UserError

CHECKPOINTS = STATE_DIR / "checkpoints"

EXIT_EQUAL, EXIT_DIFFERENT = 0, 1
"""Exit codes of the training's module."""


@dataclass(frozen=True, slots=True)
class RecordedSegment:
    """The steps after `first`, up to and with `last`."""

    first: int
    last: int


def checkpoint_folder(revision: RecordedRevision, given: Path | None) -> Path:
    """Where the run's checkpoints are, or were: `given`, else this project's own folder of the run."""
    if revision.execution is None:
        raise UserError(f"{revision.asked}: does not record the checkpoints of its training: --segment cannot check it")
    return (given or CHECKPOINTS / revision.execution.fingerprint).absolute()


def find_segment(revision: RecordedRevision, checkpoints: Path | None, asked: str) -> RecordedSegment:
    """The segment that a user names: `K`, counted from 1, or `FROM-TO` in steps.

    A segment begins with the run (step 0) or a checkpoint that is kept, and ends with the next recorded one. Raises
    UserError that lists the segments there are.
    """
    folder = checkpoint_folder(revision, checkpoints)
    recorded = sorted(revision.execution.checkpoints) if revision.execution else []
    if not recorded:
        raise UserError(
            f"{revision.asked}: records no checkpoint of its training: --segment has nothing to compare with"
        )
    kept = {0, *(step for step in kept_steps(folder) if step in recorded)}
    segments = [
        RecordedSegment(first, min(step for step in recorded if step > first))
        for first in sorted(kept)
        if first < recorded[-1]
    ]
    first, dash, last = asked.partition("-")
    if dash and first.isdecimal() and last.isdecimal():
        if int(first) in kept and int(last) in recorded and int(first) < int(last):
            return RecordedSegment(int(first), int(last))
    elif asked.isdecimal() and 0 < int(asked) <= len(segments):
        return segments[int(asked) - 1]
    shown = ", ".join(f"{number} (steps {one.first}-{one.last})" for number, one in enumerate(segments, 1))
    raise UserError(
        f"--segment {asked}: with the checkpoints in {folder} there are the segments {shown}; FROM-TO may span several "
        f"of the recorded steps {', '.join(map(str, recorded))} (train.milestone_every_steps keeps more checkpoints)"
    )


def kept_steps(folder: Path) -> set[int]:
    """The steps whose checkpoints are in a folder; none where there is no such folder."""
    found = (re.fullmatch(r"step-(\d+)", path.name) for path in folder.glob("step-*"))
    return {int(match[1]) for match in found if match}


def segment_command(
    revision: RecordedRevision, segment: RecordedSegment, checkpoints: Path, settings: Mapping[str, str], report: Path
) -> list[str]:
    """Python's arguments for the module `segment` in the training's package.

    It sets what is recorded, and then `settings`.
    """
    training = revision.training
    command = str(revision.stages[training]["cmd"]) if training else ""
    module = command.removeprefix("python -m ").split()
    if not command.startswith("python -m ") or len(module) != 1:
        raise UserError(f"{revision.asked}: its training is `{command}`, which cannot compute a segment")
    steps = ["--from", str(segment.first), "--to", str(segment.last)]
    files = ["--record", str(revision.folder / EXECUTION), "--checkpoints", str(checkpoints)]
    asked = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return ["-m", f"{module[0]}.segment", *files, *steps, *asked, "--report", str(report)]


def compute_segment(
    segment: RecordedSegment,
    revision: RecordedRevision,
    python: Path,
    checkout: Path,
    environment: Mapping[str, str],
    request: ReproduceOptions,
) -> SegmentReport:
    """Compute one segment of the training again, by the checkout's code. Raises UserError where it cannot be."""
    result = revision.work / f"segment-{segment.first}-{segment.last}.json"
    result.unlink(missing_ok=True)
    checkpoints = checkpoint_folder(revision, request.checkpoints)
    command = segment_command(revision, segment, checkpoints, request.settings, result)
    return judged_segment(run_python(python, command, checkout, environment), result, segment)


def judged_segment(code: int, result: Path, segment: RecordedSegment) -> SegmentReport:
    """The verdict that the training's module wrote. Raises UserError where it ended without one: with a traceback too,
    whose exit code is that of a difference."""
    report = SegmentReport.find(result)
    if report and (report.verdict, code) in (("equal", EXIT_EQUAL), ("different", EXIT_DIFFERENT)):
        return report
    raise failed(code)(
        f"steps {segment.first} to {segment.last} could not be computed (exit code {code}, see above); "
        "the same command tries it again"
    )


def segment_lines(revision: RecordedRevision, segment: RecordedSegment, found: SegmentReport) -> list[str]:
    """The verdict on a segment, and what of the revision it says nothing of."""
    result = BIT_IDENTICAL if found.verdict == "equal" else NOT_REPRODUCED
    weights = [file.name for file in weight_files(revision.folder)]
    made = [path for path in revision.published if path not in weights]
    said = [path for path in revision.provenance.files if path not in revision.published and path not in weights]
    return [
        "",
        f"{result}: steps {segment.first} to {segment.last} of the training",
        "not compared: computed by no step of this segment, and compared with "
        f"{RECORDED_LOCK} alone: {', '.join(made)}",
        f"not compared: compared with the rest of the record alone: {', '.join(said)}",
    ]
