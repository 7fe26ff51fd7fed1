"""Which steps are computed again, and as what: checked before anything starts.

A run that was stopped and continued has several sessions, which may have had other threads or processes. So a segment
is cut into pieces, each within one session; where two pieces meet there was a checkpoint.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from stages.formats.checkpoints import CHECKPOINTS
from stages.formats.revision.execution import Execution, Session
from stages.runtime.entry import UserError
from stages.runtime.launch.config import VARIABLE as LAUNCH
from stages.train.launch.facts import ISA_LIMITS, is_computing
from stages.train.segment.task import VARIABLE as TASK
from stages.train.segment.task import Task


@dataclass(frozen=True)
class Piece:
    """The steps after `first`, up to and with `last`, as one session executed them."""

    session: Session
    first: int
    last: int


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
        return self.checkpoints / checkpoint_name(self.first) if self.first else None

    def task(self, piece: Piece, start: Path | None, scratch: Path) -> Task:
        """What the workers have to do for a piece that begins with the checkpoint `start`."""
        recorded = self.record.checkpoints.items()
        return Task(
            fingerprint=self.record.fingerprint,
            run=self.checkpoints,
            max_steps=self.record.sessions[-1].last_step,
            checkpoint=start,
            first=piece.first,
            last=piece.last,
            recorded={step: sha256 for step, sha256 in recorded if piece.first <= step <= piece.last},
            scratch=scratch,
        )


def plan(record: Path, checkpoints: Path | None, first: int, last: int) -> Segment:
    """The segment between two steps. Raises UserError where the record or the first checkpoint does not have it."""
    execution = Execution.find(record)
    if execution is None or not execution.sessions:
        raise UserError(f"{record}: holds no record of how a training was executed; a finished training writes it")
    folder = (checkpoints or CHECKPOINTS / execution.fingerprint).absolute()
    recorded, kept = execution.checkpoints, kept_steps(folder)
    usable = _listed([0, *(step for step in kept if step in recorded)])
    if not 0 <= first < last:
        raise UserError(f"--from {first} --to {last}: a segment goes from a step to a later one")
    if last not in recorded:
        raise UserError(f"--to {last}: {record} has the checkpoints of the steps {_listed(sorted(recorded))}")
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


def kept_steps(folder: Path) -> list[int]:
    """The steps whose checkpoints are in a folder, whole or not."""
    names = (re.fullmatch(r"step-(\d+)", path.name) for path in folder.glob("step-*"))
    return sorted(int(name[1]) for name in names if name)


def checkpoint_name(step: int) -> str:
    """The folder of a checkpoint."""
    return f"step-{step:08d}"


def prepare(session: Session, task: Task) -> None:
    """Let this process's children compute as a session did: its settings, and none besides that could matter.

    Limits on instructions stay where the record has none: they let a newer processor compute as an older one did.
    A session of several machines is started on this one, with all of its processes.
    """
    task.scratch.mkdir()
    for name in list(os.environ):
        if is_computing(name) and (session.isa_limits or name not in ISA_LIMITS):
            del os.environ[name]
    os.environ.update(session.environment | session.isa_limits)
    os.environ.pop("PARROTFLOW_MIRROR", None)
    os.environ |= {
        "OMP_NUM_THREADS": str(session.threads_per_process),
        "PARROTFLOW_COMPILE": "on" if session.compiled else "off",
        "PARROTFLOW_MICRO_BATCH": str(session.micro_batch_size),
        "PARROTFLOW_RESTARTS": "0",
        TASK: task.model_dump_json(),
    }
    if session.launch is not None:
        file = task.scratch / "launch.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(session.launch) | {"num_machines": 1}), encoding="utf-8")
        os.environ[LAUNCH] = str(file)


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) or "none"
