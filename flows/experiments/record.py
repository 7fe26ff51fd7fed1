"""The record of runs: a file of JSON lines. Each line is flushed to the disk, so a kill keeps the earlier lines.

An incomplete last line is ignored, and the next run replaces it. An experiment's is `experiments/NAME/runs.jsonl`, with
a line for each finished or failed run of a cell; if a cell ran again, its last line counts. The log of this folder's
runs (flows/results/log.py) has the same format.
"""

import fcntl
import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stages.formats.curves import Points, curves_in
from stages.formats.reports import Model
from stages.runtime.errors import UserError
from stages.runtime.section import Section

RUNS_FILE = "runs.jsonl"
"""The name of the record in the folder of an experiment's results."""

RunState = Literal["finished", "failed", "cancelled"]


class Run(Section):
    """A run of a cell, with all data for tables, figures and claims, so that they outlive the run's commit."""

    # Diverged curves keep their infinities; records of earlier versions have more fields.
    model_config = ConfigDict(ser_json_inf_nan="constants", extra="ignore")

    cell: str
    """The cell's id."""
    state: RunState
    experiment: str
    """The name of the DVC experiment; empty if the run failed."""
    commit: str
    """The commit of the experiment: code, params, dvc.lock and reports of this run."""
    baseline: str
    """The commit from which it was started."""
    params: dict[str, Any]
    """The sections of params.yaml that its stages read."""
    reports: dict[str, Any]
    """Path -> content of each JSON file that the experiment's metrics use."""
    curves: dict[str, list[tuple[float, float]]]
    """FILE:COLUMN -> points."""
    ended: str
    """ISO 8601."""
    message: str = ""
    keys: dict[str, str] = Field(default_factory=dict)
    """The content key of each stage (flows/sweep/keys.py)."""


def append_run(path: Path, run: BaseModel) -> None:
    """Append a line. Several processes may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a kill left an incomplete line
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(run.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def recorded_runs(path: Path) -> list[Run]:
    """All runs of cells, in the order of their lines. Raises as `recorded_lines`."""
    return recorded_lines(path, Run)


def recorded_lines(path: Path, kind: type[Model]) -> list[Model]:
    """All lines as models of `kind`; an incomplete last line, which a kill left, is skipped.

    Raises UserError for any other invalid line.
    """
    runs = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True) if path.is_file() else (), start=1):
        if line.startswith((b"<<<<<<<", b"=======", b">>>>>>>")):
            raise UserError(f"{path}: line {number}: a merge conflict; keep both sides' lines, and remove the markers")
        if not line.endswith(b"\n"):
            break
        try:
            runs.append(kind.model_validate_json(line))
        except ValidationError:
            raise UserError(f"{path}: line {number} is not a run; remove it, or restore the file from git") from None
    return runs


def last_runs(path: Path) -> dict[str, Run]:
    """Cell id -> last run."""
    return {run.cell: run for run in recorded_runs(path)}


def reports_and_curves(
    texts: Mapping[str, str], reports: Collection[str], curves: Collection[str]
) -> tuple[dict[str, Any], dict[str, Points]]:
    """The values of JSON files and the points of FILE:COLUMN curves that are in `texts` (path -> text)."""
    values: dict[str, Any] = {}
    for file in reports:
        with suppress(KeyError, ValueError):
            values[file] = json.loads(texts[file])
    points: dict[str, Points] = {}
    for location in curves:
        file, _, column = location.partition(":")
        points[location] = curves_in(texts.get(file, ""), file).get(column, [])
    return values, points
