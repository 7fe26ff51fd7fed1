"""A run in the terminal: the plan, each stage's lines, and at the end a table of the results."""

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flows.run.outcome import GOOD
from flows.run.report import filled_in, outcome_rows, pages_of, shown_metrics, up_to_date
from stages.formats.pages import in_digits

if TYPE_CHECKING:
    from flows.plan.graph import Plan
    from flows.run.outcome import StageOutcome

STATE_STYLE = {"up to date": "dim", "run": "yellow", "maybe": "cyan", "restore": "green"}
RESULT_STYLE = dict.fromkeys(GOOD, "green") | {
    "unchanged": "dim",
    "refused": "yellow",
    "failed": "red",
    "stopped": "yellow",
}


class LastingConsole(Console):
    """A console that falls silent, instead of exiting, when the reader closes its pipe (`parrotflow run | head`)."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_line(text: str) -> None:
    """Print a line, unless the reader has closed its pipe."""
    LastingConsole(highlight=False).out(text, highlight=False)


def confirmed(question: str) -> bool:
    """Ask the user; the end of the input (Ctrl-D) is a no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def columns(*headings: str, cut: str = "") -> Table:
    """Make a table without lines. Long texts are folded; with `cut` only that column, of `cropped` texts, shrinks."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading in ("seconds", "last took") else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=bool(cut) and heading != cut)
    return table


def cropped(text: str) -> Text:
    """Return a text that is cut off at the end of its column."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def quoted(value: str) -> str:
    """Quote a value for a shell, by double quotes if they suffice."""
    return shlex.quote(value) if set(value) & {*'"$`\\!\n'} else f'"{value}"'


def plan_table(plan: "Plan") -> Table | str:
    """Return the plan as a table; before the first run as one line, since all stages have the same reason."""
    if plan.is_first:
        return f"first run here: all stages run ({escape(', '.join(stage.name for stage in plan))})"
    table = columns("stage", "state", "why", "last took")
    for stage in plan:
        expected = "" if stage.seconds is None or stage.state == "up to date" else f"{stage.seconds:.0f} s"
        table.add_row(
            escape(stage.name),
            f"[{STATE_STYLE[stage.state]}]{stage.state}[/]",
            escape("\n".join(stage.causes)),
            expected,
        )
    return table


@dataclass(frozen=True)
class NodeRow:
    """A node in the table of a run: a stage, or a job of a sweep."""

    name: str
    seconds: float | None = None
    """Its expected duration."""


class Terminal:
    """Prints a run while it works: lines with their node's name, and in a terminal a table of the nodes below."""

    def __init__(self, rows: Sequence[NodeRow]) -> None:
        self.rows = rows
        self.console = LastingConsole(highlight=False, soft_wrap=not sys.stdout.isatty())
        self.started_at: dict[str, float] = {}
        self.progress: dict[str, str] = {}
        self.sparklines: dict[str, str] = {}
        self.outcomes: dict[str, StageOutcome] = {}
        self._live = Live(get_renderable=self._view, console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the table."""
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(escape(text))

    def started(self, name: str, attempt: int) -> None:
        """An attempt at a node begins."""
        self.started_at[name] = time.perf_counter()
        self.outcomes.pop(name, None)
        again = f", attempt {attempt}" if attempt > 1 else ""
        self._print(name, f"[bold]started[/]{again}")

    def ended(self, outcome: "StageOutcome") -> None:
        """An attempt has ended, or the node was refused without one."""
        self.outcomes[outcome.name] = outcome
        self.started_at.pop(outcome.name, None)
        delay = outcome.next_attempt_seconds
        later = "" if delay is None else f"; next attempt in {delay:g} s"
        style = RESULT_STYLE[outcome.result]
        self._print(outcome.name, f"[{style}]{outcome.result}[/] in {outcome.seconds:.1f} s{later}")

    def lines(self, name: str, texts: Sequence[str]) -> None:
        """Print lines of a node at once: rich takes a millisecond per call."""
        if self.console.is_terminal:
            lines = [Text.assemble((f"{name:>9}", "blue"), f" │ {text}") for text in texts]
            self.console.print(Text("\n").join(lines))
        else:
            self.console.out("\n".join(f"{name:>9} │ {text}" for text in texts), highlight=False)

    def summary(self, plan: "Plan", outcomes: Mapping[str, "StageOutcome"], seconds: float | None = None) -> None:
        """Show the stages' results, the metrics that are up to date, the run's time, the failures, and the pages."""
        shown, table = up_to_date(plan, outcomes), columns("stage", "result", "seconds")
        for name, result, took in outcome_rows(plan, outcomes):
            table.add_row(escape(name), f"[{RESULT_STYLE.get(result, 'dim')}]{result}[/]", took)
        figures = Table.grid(padding=(0, 3, 0, 0))
        for name, (value, interval) in shown_metrics(shown).items():
            ends = f"95 % interval {' to '.join(map(in_digits, interval))}" if interval else ""
            figures.add_row(escape(name), in_digits(value), ends)
        if seconds is not None:
            figures.add_row("time", f"{seconds:,.0f} s")
        self.console.print("", table if plan.to_do else "Everything is up to date.", "", figures, sep="\n")
        for outcome in outcomes.values():
            if outcome.result in ("failed", "refused"):
                self.console.print(f"\n[{RESULT_STYLE[outcome.result]}]{escape(outcome.name)} {outcome.result}[/]")
                self.say(outcome.message)
        if len(shown) == len(plan.stages):
            for title, page in pages_of(shown):
                self.say(f"{title}: {page}")
            for stage in shown:
                if line := filled_in(stage.policy.show.next, quoted):
                    self.say(line)

    def _view(self) -> Table:
        """Return a table of the nodes; more than 20 would not fit on a screen, so only the running ones are shown."""
        table = columns("stage", "state", "seconds", "progress", cut="progress")
        shown = self.rows if len(self.rows) <= 20 else [row for row in self.rows if row.name in self.started_at]
        for row in shown:
            ended, began, progress = self.outcomes.get(row.name), self.started_at.get(row.name), ""
            if ended:
                state, seconds = f"[{RESULT_STYLE[ended.result]}]{ended.result}[/]", f"{ended.seconds:.0f}"
            elif began is not None:
                of = "" if row.seconds is None else f" of ~{row.seconds:.0f}"
                state, seconds = "[bold]running[/]", f"{time.perf_counter() - began:.0f}{of}"
                progress = f"{self.progress.get(row.name, '')} {self.sparklines.get(row.name, '')}"
            else:
                state, seconds = "[dim]waiting[/]", ""
            table.add_row(escape(row.name), state, seconds, cropped(progress))
        if len(shown) < len(self.rows):
            table.caption = f"{len(self.outcomes)} of {len(self.rows)} have ended"
        return table

    def _print(self, name: str, markup: str) -> None:
        self.console.print(f"[blue]{escape(name):>9}[/] │ {markup}")
