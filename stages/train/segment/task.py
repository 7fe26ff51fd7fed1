"""What the command asks of its workers, and what they found."""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from stages.formats.revision.execution import Session

VARIABLE = "PARROTFLOW_SEGMENT"
FOUND, REASON = "found.json", "reason.txt"


class Task(BaseModel):
    """A piece of a segment."""

    model_config = ConfigDict(frozen=True)

    fingerprint: str
    """Of the run."""
    run: Path
    """The run's folder of checkpoints."""
    max_steps: int
    """Of the run: a piece that ends there leads to its weights."""
    checkpoint: Path | None
    """Where the piece begins; None: at the run's beginning."""
    first: int
    """The step of `checkpoint`."""
    last: int
    recorded: dict[int, str]
    """Step -> content of its checkpoint, for all steps of the piece that have one, `first` and `last` too."""
    scratch: Path
    """A folder of its own, where the workers write."""


class Found(BaseModel):
    """What a piece led to."""

    model_config = ConfigDict(frozen=True)

    session: Session
    """How it was executed this time."""
    contents: dict[int, str]
    """Step -> content of the checkpoint; none after the first one that differs from the record."""
    weights: str | None
    """The exported weights' sha256, where the piece ends with the run."""


def given_task() -> Task:
    """The task of this worker."""
    return Task.model_validate_json(os.environ[VARIABLE])


def reason_of(task: Task) -> str:
    """Why the workers of a task could not do it."""
    file = task.scratch / REASON
    return file.read_text(encoding="utf-8") if file.exists() else "the steps could not be computed; see above"
