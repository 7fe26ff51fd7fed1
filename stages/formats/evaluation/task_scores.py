"""Benchmarks of a training that is running: what `train` asks for, and what a process of `evaluate` answers.

Training asks a process, because its nodes need none of lm-eval's libraries as long as nobody wants benchmarks there.
The process is started as `python -m SCORER`. It reads a `TaskRequest` from the first line of its standard input, and
ends when that is closed: it never outlives the training.
"""

from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel

from stages.formats.reports import Report

SCORER = ".".join(("stages", "evaluate", "harness", "scorer"))
"""The module. Not as one string, which would make it code that the weights depend on (`stages.runtime.code`)."""


class TaskRequest(BaseModel, frozen=True, extra="forbid"):
    """A model, and what to score it on."""

    tasks: tuple[str, ...]
    """As in `harness.tasks`."""
    limit: int | None
    """Documents of each task; null: all."""
    seed: int
    folder: Path | None
    """Of the model, with its tokenizer. Null: the tasks are only loaded, to see whether they can be scored."""
    answer: Path
    """The file that the scores are written to."""


class TaskScores(Report):
    """The metrics of each task and group."""

    stage: ClassVar[str] = "train"

    metrics: dict[str, dict[str, float | None]]
    """Task or group -> metric -> value; null where it is not a number."""
    stderr: dict[str, dict[str, float]]
    """The standard errors that lm-eval computes."""
