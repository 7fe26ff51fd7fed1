"""Runs the stages of cells in their clones, and records each cell as soon as its last stage has ended well."""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.environment import dvc_state_within
from flows.experiments.rows import CELL_REPORT
from flows.experiments.runs import Batch, Run, RunState, reports_and_curves
from flows.run.outcome import GOOD, StageOutcome
from flows.run.process import StageRequest, StageRunner
from flows.run.slots import Devices, machine_name
from stages.formats.checkpoints import CHECKPOINTS
from stages.formats.reports import write_json
from stages.runtime.entry import UserError
from stages.runtime.section import read_params_file

if TYPE_CHECKING:
    from flows.experiments.cells import Cell
    from flows.experiments.rows import CurvePoints
    from flows.plan.graph import Plan

CURVES_READ_EVERY_SECONDS = 3.0

ReasonToStop = Callable[["Cell", Mapping[str, "CurvePoints"]], str]
"""Given a cell and its curves so far, by FILE:COLUMN: why it stops early; empty while it continues."""


@dataclass(kw_only=True)
class CellRunner(StageRunner):
    """A runner of stages named `CELL_ID/STAGE`."""

    cells: Mapping[str, "Cell"]
    """By their ids."""
    folders: Mapping[str, Path]
    """Their project folders."""
    batch: Batch
    head: str
    """The commit from which the clones were made."""
    save_experiment: Callable[[Path, str, Collection[str]], str]
    """Make a DVC experiment of this name of a clone's targets; its commit, empty where none is made."""
    discard: Callable[[str], None]
    """Remove the clone of a cell."""
    stop_early: ReasonToStop | None = None
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
        request: StageRequest,
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
        if outcome.cpu_seconds:  # else it was restored, or killed, and its processor's time is not known
            with self._lock:
                self._report(folder, outcome)
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

    def _report(self, folder: Path, ran: StageOutcome | None = None) -> None:
        """Keep in the clone how long a stage took, if that is wanted: a training may need several starts and calls."""
        if CELL_REPORT not in self.batch.reports:
            return
        path = folder / CELL_REPORT
        facts: dict[str, Any]
        if path.exists():
            facts = json.loads(path.read_text(encoding="utf-8"))
        else:
            facts = {"machine": machine_name(), "seconds": {}, "cpu_seconds": {}}
        if ran:
            for key, took in (("seconds", ran.seconds), ("cpu_seconds", ran.cpu_seconds)):
                facts[key][ran.name] = round(facts[key].get(ran.name, 0) + took, 1)
        write_json(path, facts)

    def _watch(self, cell: str) -> Callable[[], str]:
        """Why a cell is to be ended early, asked at most every few seconds."""
        read = time.monotonic()

        def reason() -> str:
            nonlocal read
            if self.stop_early is None or time.monotonic() - read < CURVES_READ_EVERY_SECONDS:
                return ""
            read = time.monotonic()
            curves = reports_and_curves(self._live_texts(cell), (), self.batch.curves)[1]
            return self.stop_early(self.cells[cell], curves)

        return reason

    def _live_texts(self, cell: str) -> dict[str, str]:
        """The curves that a training has written so far; its reports, which HEAD may carry too, are older ones."""
        texts = {}
        for location in self.batch.curves:
            file = Path(location.partition(":")[0])
            with suppress(OSError):
                found = (self.folders[cell] / CHECKPOINTS).glob(f"*/curves/{file.name}")
                newest = max(found, key=os.path.getmtime, default=None)
                if newest is not None:
                    # The last line may be half written, and still be a number.
                    texts[str(file)] = newest.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
        return texts

    def _save(self, cell: str) -> None:
        """Make a DVC experiment of a cell that has ended well, record it and remove its clone."""
        folder = self.folders[cell]
        with self._lock:
            self._report(folder)
            commit = self.save_experiment(folder, self.cells[cell].name, self.batch.targets)
            texts = {}
            for file in self.batch.files:
                with suppress(OSError):
                    texts[file] = (folder / file).read_text(encoding="utf-8", errors="replace")
            self._append(cell, "finished", commit=commit, texts=texts)
        self.discard(cell)

    def end_once(self, cell: str, message: str) -> None:
        """Record that a cell has failed, unless it has ended already: two of its stages may fail at once."""
        with self._lock:
            if cell not in self.runs:
                self.end_without_result(cell, message, record=True)

    def end_without_result(self, cell: str, message: str, *, record: bool) -> None:
        """A cell has no result: it failed, which is recorded, or is cancelled. Its clone and checkpoints stay."""
        texts = self._live_texts(cell)
        self._append(cell, "failed" if record else "cancelled", message=message, texts=texts)

    def _append(self, cell: str, state: RunState, **found: Any) -> None:
        params = read_params_file(self.folders[cell] / "params.yaml")
        self.runs[cell] = self.batch.end(self.cells[cell], state, self.head, params, **found)
        self.on_ended(self.runs[cell])
