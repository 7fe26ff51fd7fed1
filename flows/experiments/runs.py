"""The record of an experiment's runs, `experiments/NAME/runs.jsonl`.

One line for each finished or failed run, appended and flushed to the disk. A kill leaves the earlier lines intact, and
an incomplete last line is ignored. Of a cell that ran again the last line counts.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from flows.run.report import curve_points
from stages.runtime.entry import UserError
from stages.runtime.section import Section

if TYPE_CHECKING:
    from flows.experiments.cells import Cell

RECORD = "runs.jsonl"
"""In the folder of an experiment's results."""

RunState = Literal["finished", "failed", "cancelled"]


class Run(Section):
    """One run of a cell. It holds all that tables, figures and claims need, so that they outlive the run's commit."""

    # A curve that diverged is not recorded as null; earlier versions recorded more.
    model_config = ConfigDict(ser_json_inf_nan="constants", extra="ignore")

    cell: str
    """Its id."""
    state: RunState
    experiment: str
    """The name of the DVC experiment; empty where a run failed."""
    commit: str
    """Of the experiment: code, params, dvc.lock and reports of this run."""
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

    @property
    def params_sha256(self) -> str:
        """Of the params in canonical JSON."""
        return hashlib.sha256(json.dumps(self.params, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Batch:
    """Cells that are to have runs; what of a run is recorded, and where."""

    title: str
    """Of what runs them, for people."""
    cells: Sequence["Cell"]
    targets: Sequence[str]
    """The stages at which a run ends."""
    reports: Collection[str]
    """JSON files."""
    curves: Collection[str]
    """FILE:COLUMN."""
    sections: Collection[str]
    """Sections of params.yaml that the stages read."""
    record: Path

    @property
    def files(self) -> set[str]:
        """Those that the reports and curves are read from."""
        return {*self.reports, *(location.partition(":")[0] for location in self.curves)}

    def end(
        self,
        cell: "Cell",
        state: RunState,
        baseline: str,
        params: dict[str, Any],
        keys: dict[str, str],
        *,
        commit: str = "",
        texts: Mapping[str, str] | None = None,
        message: str = "",
    ) -> Run:
        """The run of a cell that has ended, added to the record unless it was cancelled.

        `texts` are those of the files that hold the reports and curves.
        """
        values, points = reports_and_curves(texts or {}, self.reports, self.curves)
        run = Run(
            cell=cell.id,
            state=state,
            experiment=cell.name if commit else "",
            commit=commit,
            baseline=baseline,
            params={name: section for name, section in params.items() if name in self.sections},
            reports=values,
            curves=points,
            ended=datetime.now(UTC).isoformat(timespec="seconds"),
            message=message,
            keys=keys,
        )
        if state != "cancelled":
            append_run(self.record, run)
        return run


RunCells = Callable[..., dict[str, Run]]
"""What runs the cells of a batch and records them: here, or on a pool (flows/sweep/run_cells.py, pool.py)."""


def append_run(path: Path, run: Run) -> None:
    """Add a run. Several processes may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a kill has left half a line
                file.write(b"\n")
        file.write(run.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def recorded_runs(path: Path) -> list[Run]:
    """Every run, in the order of their lines; half a line, left by a kill, is skipped.

    Raises UserError for any other line that is not a run.
    """
    runs = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.is_file() else (), start=1):
        if line.startswith((b"<<<<<<<", b"=======", b">>>>>>>")):
            raise UserError(f"{path}: line {number}: a conflict of git; keep the lines of both sides, remove its marks")
        try:
            json.loads(line)
        except ValueError:
            continue
        try:
            runs.append(Run.model_validate_json(line))
        except ValidationError:
            raise UserError(f"{path}: line {number} is not a run; remove it, or restore the file from git") from None
    return runs


def last_runs(path: Path) -> dict[str, Run]:
    """The last run of each cell, by the cell's id."""
    return {run.cell: run for run in recorded_runs(path)}


def reports_and_curves(
    texts: Mapping[str, str], reports: Collection[str], curves: Collection[str]
) -> tuple[dict[str, Any], dict[str, list[tuple[float, float]]]]:
    """The values of JSON files and the points of FILE:COLUMN curves, as far as the files' texts hold them."""
    values: dict[str, Any] = {}
    for file in reports:
        with suppress(KeyError, ValueError):
            values[file] = json.loads(texts[file])
    return values, {
        location: list(curve_points(texts.get(location.partition(":")[0], ""), location)) for location in curves
    }
