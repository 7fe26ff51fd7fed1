"""What a person sees of cells that run: a line for each that ends, and in a terminal a table that renews itself."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.markup import escape
from rich.text import Text

from flows.run.outcome import GOOD, Event, Lines, StageEnded, StageProgress, StageStarted
from flows.show.terminal import LIVE_ROWS, RESULT_STYLE, Follower, columns, one_line

if TYPE_CHECKING:
    from flows.experiments.cells import Cell
    from flows.experiments.runs import Run


class Live(Follower):
    """Follows the cells of one run."""

    def __init__(self, title: str, cells: Mapping[str, "Cell"], stages: Sequence[str], known: int) -> None:
        """`stages`: what is to do, each named `CELL_ID/STAGE`. `known`: how many more cells have a result already."""
        super().__init__()
        self.title, self.cells, self.known = title, cells, known
        self.left = {cell: [stage for stage in stages if stage.startswith(f"{cell}/")] for cell in cells}
        self.running: dict[str, float] = {}
        self.progress: dict[str, str] = {}
        self.ran: dict[str, int] = {}
        self.done: dict[str, Run] = {}
        self.finished: dict[str, Run] = {}
        """Cells that are recorded before the end of their last stage is told."""
        self.stopped: set[str] = set()
        """Cells that were ended early, which is no failure."""
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
            self.ran[outcome.result] = self.ran.get(outcome.result, 0) + 1
            if event.stage in self.left[cell] and event.retry_in_seconds is None:
                self.left[cell].remove(event.stage)
        if outcome.result not in GOOD:
            if outcome.result == "stopped":
                self.stopped.add(cell)
            again = "" if event.retry_in_seconds is None else f"; next attempt in {event.retry_in_seconds:g} s"
            self._print(outcome.result, f"{self._label(cell)}: {stage} {outcome.result}{again}")
            if outcome.message:
                self.say(outcome.message)
        elif outcome.result == "ran" and not self.console.is_terminal:
            self._print(outcome.result, f"{self._label(cell)}: {stage} ran in {outcome.seconds:.1f} s")
        self._tell_finished(cell)

    def on_ended(self, run: "Run") -> None:
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
            stopped = len(self.stopped & self.done.keys())
            failed = sum(run.state != "finished" for run in self.done.values()) - stopped
            elapsed = now - self.began
            left = (len(self.cells) - len(self.done)) * elapsed / len(self.done) if self.done else None
            table = columns("cell", "stage", "progress", "seconds", "stages left", cut="cell")
            for name, began in list(self.running.items())[:LIVE_ROWS]:
                cell, _, stage = name.partition("/")
                table.add_row(
                    one_line(self._label(cell)),
                    stage,
                    self.progress.get(name, ""),
                    f"{now - began:.0f}",
                    str(len(self.left[cell])),
                )
        counts = ", ".join(f"{count} {result}" for result, count in self.ran.items())
        early = f", {stopped} stopped early" if stopped else ""
        done = f"{len(self.done)} of {len(self.cells)} cells done{early}, {failed} failed"
        more = f"; about {left / 60:.0f} min left" if left is not None and left > 60 else ""
        note = f"; {self.note}" if self.note else ""
        stages = f"stages: {counts or 'none yet'}"
        return Group(Text(""), table, Text(f"{done}; {stages}{note}; {elapsed / 60:.1f} min{more}"))
