"""Runs the stages of cells in their clones, and records each cell as soon as its last stage has ended well."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from flows.environment import dvc_state_within
from flows.experiments.runs import Run, State, append_run, reports_and_curves
from flows.run.children import Request
from flows.run.devices import Devices
from flows.run.outcome import GOOD, StageOutcome
from flows.run.process import StageRunner
from stages.formats.checkpoints import CHECKPOINTS
from stages.runtime.entry import UserError
from stages.runtime.section import read_params_file

if TYPE_CHECKING:
    from flows.experiments.cells import Cell
    from flows.experiments.rows import Points
    from flows.plan.graph import Plan

CURVES_READ_EVERY_SECONDS = 3.0

StopEarly = Callable[["Cell", Mapping[str, "Points"]], str]
"""Given a cell and its curves so far, by FILE:COLUMN: why it stops early; empty while it continues."""


@dataclass(frozen=True)
class Recorded:
    """What of a cell is recorded, and where."""

    targets: Collection[str]
    reports: Collection[str]
    curves: Collection[str]
    path: Path
    head: str
    """The commit from which the clones were made."""
    save_experiment: Callable[[Path, str, Collection[str]], str]
    """Make a DVC experiment of this name of a clone's targets; its commit, empty where none is made."""
    discard: Callable[[str], None]
    """Remove the clone of a cell."""


@dataclass
class CellRunner(StageRunner):
    """A runner of stages named `CELL_ID/STAGE`."""

    cells: Mapping[str, "Cell"] = field(default_factory=dict)
    """By their ids."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Their project folders."""
    recorded: Recorded | None = None
    stop_early: StopEarly | None = None
    devices: Devices = field(default_factory=Devices)
    runs: dict[str, Run] = field(default_factory=dict)
    """Of the cells that have ended."""
    on_ended: Callable[[Run], None] = lambda run: None
    _resources: dict[str, Collection[str]] = field(default_factory=dict)
    _to_do: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, plan: "Plan") -> None:
        """Record at once the cells that have nothing left to do: a kill came between their end and their record."""
        self._resources = {stage.name: stage.policy.resources for stage in plan.to_do}
        self._to_do = Counter(name.partition("/")[0] for name in self._resources)
        for cell in self.folders:
            if not self._to_do[cell]:
                try:
                    self._save(cell)
                except UserError as error:
                    self.end_without_result(cell, str(error), record=True)

    def run(
        self,
        request: Request,
        on_lines: Callable[[list[str]], None],
        timeout_seconds: float | None = None,
        give_up: Callable[[], str] = lambda: "",
    ) -> StageOutcome:
        """Run a stage of a cell in its clone; the cell's last one ends with its record."""
        cell, _, stage = request.stage.partition("/")
        with self.devices.taken(self._resources[request.stage]) as environment:
            folder = self.folders[cell]
            own = replace(
                request,
                stage=stage,
                folder=str(folder),
                environment=request.environment | dvc_state_within(folder) | environment,
            )
            outcome = super().run(own, on_lines, timeout_seconds, self._watch(cell))
        outcome = replace(outcome, name=request.stage)
        if outcome.result not in GOOD:
            return outcome
        with self._lock:
            self._to_do[cell] -= 1
            ended = not self._to_do[cell]
        try:
            if ended:
                self._save(cell)
        except UserError as error:
            return replace(outcome, result="failed", message=str(error))
        return outcome

    def _watch(self, cell: str) -> Callable[[], str]:
        """Why a cell is to be ended early, asked at most every few seconds."""
        read = time.monotonic()

        def reason() -> str:
            nonlocal read
            if self.stop_early is None or time.monotonic() - read < CURVES_READ_EVERY_SECONDS:
                return ""
            read = time.monotonic()
            return self.stop_early(self.cells[cell], self._live_curves(cell))

        return reason

    def _live_curves(self, cell: str) -> dict[str, "Points"]:
        """The curves that a training has written so far; its reports, which HEAD may carry too, are older ones."""
        assert self.recorded is not None
        texts = {}
        for location in self.recorded.curves:
            file = Path(location.partition(":")[0])
            with suppress(OSError):
                found = (self.folders[cell] / CHECKPOINTS).glob(f"*/curves/{file.name}")
                newest = max(found, key=os.path.getmtime, default=None)
                if newest is not None:
                    # The last line may be half written, and still be a number.
                    texts[str(file)] = newest.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
        return reports_and_curves(texts, (), self.recorded.curves)[1]

    def _save(self, cell: str) -> None:
        """Make a DVC experiment of a cell that has ended well, record it and remove its clone."""
        assert self.recorded is not None
        folder = self.folders[cell]
        with self._lock:
            commit = self.recorded.save_experiment(folder, self.cells[cell].name, self.recorded.targets)
            locations = {location.partition(":")[0] for location in self.recorded.curves}
            texts = {}
            for file in {*self.recorded.reports, *locations}:
                with suppress(OSError):
                    texts[file] = (folder / file).read_text(encoding="utf-8", errors="replace")
            self._append(cell, "finished", commit=commit, texts=texts)
        self.recorded.discard(cell)

    def end_once(self, cell: str, message: str) -> None:
        """Record that a cell has failed, unless it has ended already: two of its stages may fail at once."""
        with self._lock:
            if cell not in self.runs:
                self.end_without_result(cell, message, record=True)

    def end_without_result(self, cell: str, message: str, *, record: bool) -> None:
        """A cell has no result: it failed, which is recorded, or is cancelled. Its clone and checkpoints stay."""
        self._append(cell, "failed" if record else "cancelled", message=message, curves=self._live_curves(cell))

    def _append(
        self,
        cell: str,
        state: State,
        *,
        commit: str = "",
        texts: Mapping[str, str] | None = None,
        curves: Mapping[str, "Points"] | None = None,
        message: str = "",
    ) -> None:
        assert self.recorded is not None
        reports, read = reports_and_curves(texts or {}, self.recorded.reports, self.recorded.curves)
        run = Run(
            cell=cell,
            state=state,
            experiment=self.cells[cell].name if commit else "",
            commit=commit,
            baseline=self.recorded.head,
            params=read_params_file(self.folders[cell] / "params.yaml"),
            reports=reports,
            curves={**read, **(curves or {})},
            ended=datetime.now(UTC).isoformat(timespec="seconds"),
            message=message,
        )
        if state != "cancelled":
            append_run(self.recorded.path, run)
        self.runs[cell] = run
        self.on_ended(run)
