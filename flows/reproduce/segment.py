"""`--segment`: only the steps between two kept checkpoints are computed again, by the training's own module."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from flows.environment import STATE_DIR
from flows.reproduce.revision import Revision
from stages.formats.revision.layout import EXECUTION
from stages.runtime.entry import UserError

CHECKPOINTS = STATE_DIR / "checkpoints"

EQUAL, DIFFERENT = 0, 1
"""Exit codes of the training's module."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The steps after `first`, up to and with `last`."""

    first: int
    last: int


def checkpoint_folder(revision: Revision, given: Path | None) -> Path:
    """Where the run's checkpoints are: `given`, else those of this project. Raises UserError where there are none."""
    if revision.execution is None:
        raise UserError(f"{revision.asked}: does not record the checkpoints of its training, so --segment cannot check")
    folder = (given or CHECKPOINTS / revision.execution.fingerprint).absolute()
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such folder; name the folder with the run's checkpoints with --checkpoints "
            "(train.milestone_every_steps lets a run keep them)"
        )
    return folder


def find_segment(revision: Revision, folder: Path, asked: str) -> Segment:
    """The segment that a user names: `K`, counted from 1 over the kept checkpoints, or `FROM-TO` in steps.

    Raises UserError that lists the segments there are.
    """
    recorded = revision.execution.checkpoints if revision.execution else {}
    kept = sorted(step for step in map(step_of, folder.iterdir()) if step in recorded)
    segments = [Segment(first, last) for first, last in pairwise(kept)]
    shown = ", ".join(f"{number}: {one.first}-{one.last}" for number, one in enumerate(segments, 1)) or "none"
    first, dash, last = asked.partition("-")
    if dash and first.isdecimal() and last.isdecimal():
        if int(first) in kept and int(last) in recorded and int(first) < int(last):
            return Segment(int(first), int(last))
    elif asked.isdecimal() and 0 < int(asked) <= len(segments):
        return segments[int(asked) - 1]
    raise UserError(f"--segment {asked}: {folder} has these segments between recorded checkpoints: {shown}")


def step_of(folder: Path) -> int | None:
    """The step of a checkpoint's folder; None for other files."""
    digits = folder.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() and folder.is_dir() else None


def segment_command(revision: Revision, python: Path, segment: Segment, checkpoints: Path, report: Path) -> list[str]:
    """The command of the training's module `segment`, which stands next to the stage's own."""
    training = revision.training
    command = str(revision.stages[training]["cmd"]) if training else ""
    module = command.removeprefix("python -m ").split()
    if not command.startswith("python -m ") or len(module) != 1:
        raise UserError(f"{revision.asked}: its training is `{command}`, which cannot compute a segment")
    steps = ["--from", str(segment.first), "--to", str(segment.last)]
    files = ["--record", str(revision.folder / EXECUTION), "--checkpoints", str(checkpoints)]
    return [str(python), "-m", f"{module[0]}.segment", *files, *steps, "--report", str(report)]


def read_segment_report(path: Path) -> dict[str, Any]:
    """What the training's module found; empty where it wrote nothing."""
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return report
