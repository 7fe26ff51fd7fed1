"""What a user sees of a sweep: a line for each stage that starts and each cell that ends, in a terminal also bars."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from rich import progress
from rich.markup import escape

from flows.run.terminal import LastingConsole

if TYPE_CHECKING:
    from flows.experiments.cells import Cell
    from flows.experiments.runs import Run
    from flows.sweep.jobs import Ended, Job


class Progress:
    """Follows the jobs of a sweep."""

    def __init__(self, title: str, cells: Mapping[str, "Cell"]) -> None:
        self.title, self.cells, self.done = title, cells, 0
        console = LastingConsole(highlight=False, soft_wrap=not sys.stdout.isatty())
        columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TimeElapsedColumn())
        self._bars = progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._all = self._bars.add_task(title, total=len(cells))
        self._tasks: dict[str, progress.TaskID] = {}
        self._stages: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def print(self, text: str, style: str = "") -> None:
        """Print a line."""
        self._bars.console.print(escape(text), style=style or None)

    def say(self, job: "Job", text: str) -> None:
        """Print a line of a job."""
        self.print(f"{self._label(job)}: {text}")

    def started(self, job: "Job") -> None:
        """A job is at work."""
        self._tasks[job.key] = self._bars.add_task(escape(self._label(job)), total=None)

    def stage(self, job: "Job", stage: str) -> None:
        """A job runs a stage, which DVC has not found in its cache."""
        self._stages[job.key] = stage
        self.say(job, f"{stage} started")
        self.counted(job, "")

    def counted(self, job: "Job", text: str) -> None:
        """A stage has said how far it is."""
        shown = f"{self._label(job)}: {self._stages.get(job.key, '')} {text}"
        self._bars.update(self._tasks[job.key], description=escape(shown))

    def ended(self, job: "Job", how: "Ended") -> None:
        """A job has ended."""
        self._bars.remove_task(self._tasks.pop(job.key))
        if how.state != "finished":
            self.print(f"{self._label(job)}: {how.state}: {how.message}", "red")

    def recorded(self, run: "Run") -> None:
        """A cell has ended, with a result or without one."""
        self.done += 1
        self._bars.update(self._all, completed=self.done)
        name = f" as {run.experiment}" if run.experiment else ""
        if run.state == "finished":
            self.print(f"{self.done}/{len(self.cells)} {self.cells[run.cell].label}: finished{name}", "green")

    def _label(self, job: "Job") -> str:
        return f"{len(job.cells)} cells" if job.shared else self.cells[job.cells[0]].label
