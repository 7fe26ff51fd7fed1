"""The record of runs: a file of JSON lines, appended and flushed to the disk, so that a kill leaves the earlier lines.

A last line without its end is ignored, and the next run replaces it. An experiment's is `experiments/NAME/runs.jsonl`,
with a line for each finished or failed run of a cell; if a cell ran again, its last line counts. The log of the runs of
this folder (flows/results/log.py) is written and read in the same way.
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
    """One run of a cell. It holds all that tables, figures and claims need, so that they outlive the run's commit."""

    # A curve that diverged is not recorded as null; earlier versions recorded more.
    model_config = ConfigDict(ser_json_inf_nan="constants", extra="ignore")

    cell: str
    """Its id."""
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
    """The values of each JSON file that the experiment's metrics name, by its path."""
    curves: dict[str, list[tuple[float, float]]]
    """Points, by FILE:COLUMN."""
    ended: str
    """ISO 8601."""
    message: str = ""
    keys: dict[str, str] = Field(default_factory=dict)
    """The content key of each stage (flows/sweep/keys.py)."""


def append_run(path: Path, run: BaseModel) -> None:
    """Add a line. Several processes may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a kill has left half a line
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(run.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def recorded_runs(path: Path) -> list[Run]:
    """Every run of a cell, in the order of their lines. Raises as `recorded_lines`."""
    return recorded_lines(path, Run)


def recorded_lines(path: Path, kind: type[Model]) -> list[Model]:
    """Every line as a `kind` of run; half a line at the end, left by a kill, is skipped.

    Raises UserError for any other line that is not a run.
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
    """The last run of each cell, by the cell's id."""
    return {run.cell: run for run in recorded_runs(path)}


def reports_and_curves(
    texts: Mapping[str, str], reports: Collection[str], curves: Collection[str]
) -> tuple[dict[str, Any], dict[str, Points]]:
    """The values of JSON files and the points of FILE:COLUMN curves, as far as the files' texts hold them."""
    values: dict[str, Any] = {}
    for file in reports:
        with suppress(KeyError, ValueError):
            values[file] = json.loads(texts[file])
    places = {location: location.partition(":") for location in curves}
    return values, {
        location: curves_in(texts.get(file, ""), file).get(column, []) for location, (file, _, column) in places.items()
    }
