"""Cells as they run: their stages in their clones, each cell recorded as soon as its last stage has ended well.

And what a person sees of that: a line for each cell that ends, and in a terminal a table that renews itself.
"""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Group
from rich.markup import escape
from rich.text import Text

from flows.environment import dvc_state_within
from flows.experiments.cells import Cell
from flows.experiments.rows import CELL_REPORT
from flows.experiments.runs import Batch, Run, RunState
from flows.run.locks import machine_name
from flows.run.outcome import GOOD, Event, Lines, StageEnded, StageOutcome, StageProgress, StageStarted
from flows.run.process import StageRequest, StageRunner
from flows.run.terminal import LIVE_ROWS, RESULT_STYLE, Follower, columns, one_line
from stages.formats.model_folder import CHECKPOINTS
from stages.formats.reports import write_json
from stages.runtime.entry import UserError
from stages.runtime.section import read_params_file

if TYPE_CHECKING:
    from flows.plan.graph import PlannedStage


@dataclass(kw_only=True)
class CellRunner(StageRunner):
    """A runner of stages named `CELL_ID/STAGE`."""

    cells: Mapping[str, Cell]
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
    on_ended: Callable[[Run], None]
    runs: dict[str, Run] = field(default_factory=dict)
    """Of the cells that have ended."""
    _to_do: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, to_do: "Iterable[PlannedStage]") -> None:
        """Record at once the cells that have nothing left to do: a kill came between their end and their record."""
        self._to_do = Counter(stage.name.partition("/")[0] for stage in to_do)
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
        folder = self.folders[cell]
        environment = {**request.environment, **dvc_state_within(folder)}
        own = replace(request, stage=stage, folder=str(folder), environment=environment)
        outcome = super().run(own, on_lines, timeout_seconds, give_up)
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
        facts: dict[str, Any] = {"machine": machine_name(), "seconds": {}, "cpu_seconds": {}}
        if path.exists():
            facts = json.loads(path.read_text(encoding="utf-8"))
        if ran:
            for key, took in (("seconds", ran.seconds), ("cpu_seconds", ran.cpu_seconds)):
                facts[key][ran.name] = round(facts[key].get(ran.name, 0) + took, 1)
        write_json(path, facts)

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

    def end_without_result(self, cell: str, message: str, *, record: bool) -> None:
        """A cell has no result: it failed, which is recorded, or is cancelled. Its clone and checkpoints stay.

        Nothing happens where it has ended already: two of its stages may fail at once.
        """
        with self._lock:
            if cell not in self.runs:
                state: RunState = "failed" if record else "cancelled"
                self._append(cell, state, message=message, texts=self._live_texts(cell))

    def _append(self, cell: str, state: RunState, **found: Any) -> None:
        params = read_params_file(self.folders[cell] / "params.yaml")
        self.runs[cell] = self.batch.end(self.cells[cell], state, self.head, params, **found)
        self.on_ended(self.runs[cell])


class Live(Follower):
    """Follows the cells of one run."""

    def __init__(self, title: str, cells: Mapping[str, Cell], stages: Sequence[str], known: int) -> None:
        """`stages`: what is to do, each named `CELL_ID/STAGE`. `known`: how many more cells have a result already."""
        super().__init__()
        self.title, self.cells, self.known = title, cells, known
        self.left = {cell: [stage for stage in stages if stage.startswith(f"{cell}/")] for cell in cells}
        self.running: dict[str, float] = {}
        self.progress: dict[str, str] = {}
        self.ran = Counter[str]()
        self.done: dict[str, Run] = {}
        self.finished: dict[str, Run] = {}
        """Cells that are recorded before the end of their last stage is told."""
        self.note = ""
        """More for the summary."""

    def __enter__(self) -> Self:
        already = f"; {self.known} more are recorded already" if self.known else ""
        self.say(f"{self.title}: {len(self.cells)} cells to run{already}")
        return super().__enter__()

    def on_event(self, event: Event) -> None:
        """Follow an event; what stages print is in Prefect's pages, and only of a failure shown here."""
        match event:
            case StageStarted():
                with self._lock:
                    self.running[event.stage] = time.perf_counter()
            case StageProgress():
                with self._lock:
                    self.progress[event.stage] = f"{event.done} of {event.total}"
            case Lines():
                for text in event.texts:
                    if text.startswith("warning: "):
                        self.say(f"{self._label(event.stage)}: {text}")
            case StageEnded():
                self._ended(event)

    def _ended(self, event: StageEnded) -> None:
        cell, _, stage = event.stage.partition("/")
        outcome = event.outcome
        with self._lock:
            self.running.pop(event.stage, None)
            self.progress.pop(event.stage, None)
            self.ran[outcome.result] += 1
            if event.stage in self.left[cell] and event.retry_in_seconds is None:
                self.left[cell].remove(event.stage)
        if outcome.result not in GOOD:
            again = "" if event.retry_in_seconds is None else f"; next attempt in {event.retry_in_seconds:g} s"
            self._print(outcome.result, f"{self._label(cell)}: {stage} {outcome.result}{again}")
            if outcome.message:
                self.say(outcome.message)
        elif outcome.result == "ran" and not self.console.is_terminal:
            self._print(outcome.result, f"{self._label(cell)}: {stage} ran in {outcome.seconds:.1f} s")
        self._tell_finished(cell)

    def on_ended(self, run: Run) -> None:
        """A cell has ended, with a result or without one."""
        with self._lock:
            self.done[run.cell] = run
            if run.state == "finished":
                self.finished[run.cell] = run
        self._tell_finished(run.cell)

    def _tell_finished(self, cell: str) -> None:
        """Say that a cell has finished, after its last stage has been told."""
        with self._lock:
            run = self.finished.pop(cell, None) if not self.left[cell] else None
            number = len(self.done) - len(self.finished)
        if run is not None:
            name = f" as {run.experiment}" if run.experiment else ""
            self._print("ran", f"{number}/{len(self.cells)} {self._label(cell)}: finished{name}")

    def _print(self, result: str, text: str) -> None:
        with self._lock:
            self.console.print(f"[{RESULT_STYLE[result]}]{escape(text)}[/]")

    def _label(self, name: str) -> str:
        return self.cells[name.partition("/")[0]].label

    def _view(self) -> Group:
        """How many cells are done, and those that run."""
        now = time.perf_counter()
        with self._lock:
            failed = sum(run.state != "finished" for run in self.done.values())
            elapsed = now - self.began
            left = (len(self.cells) - len(self.done)) * elapsed / len(self.done) if self.done else 0
            table = columns("cell", "stage", "progress", "seconds", "stages left", cut="cell")
            for name, began in list(self.running.items())[:LIVE_ROWS]:
                cell, _, stage = name.partition("/")
                done, seconds, stages_left = self.progress.get(name, ""), f"{now - began:.0f}", len(self.left[cell])
                table.add_row(one_line(self._label(cell)), stage, done, seconds, str(stages_left))
        counts = ", ".join(f"{count} {result}" for result, count in self.ran.items())
        parts = [
            f"{len(self.done)} of {len(self.cells)} cells done, {failed} failed",
            f"stages: {counts or 'none yet'}",
            self.note,
            f"{elapsed / 60:.1f} min",
            f"about {left / 60:.0f} min left" if left > 60 else "",
        ]
        return Group(Text(""), table, Text("; ".join(filter(None, parts))))
