"""What a person sees of a run in the terminal: the plan, each stage's lines, and at the end what ran and why."""

import os
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flows.run.outcome import (
    GOOD,
    Event,
    Lines,
    StageEnded,
    StageStarted,
    filled_in,
    outcome_rows,
    shown_metrics,
    up_to_date,
)

if TYPE_CHECKING:
    from flows.plan.graph import Plan
    from flows.run.outcome import StageOutcome

STATE_STYLE = {"clean": "dim", "run": "yellow", "maybe": "cyan", "restore": "green"}
RESULT_STYLE = dict.fromkeys(GOOD, "green") | {
    "unchanged": "dim",
    "refused": "yellow",
    "failed": "red",
    "stopped": "yellow",
}

NUMBERS = {"seconds", "last took", "stages left"}
"""Columns that are aligned right."""

LIVE_ROWS = 20
"""Stages in the table that renews itself."""


def columns(*headings: str, cut: str = "") -> Table:
    """A table without lines. Long texts are folded; with `cut` only that column, of texts `one_line`, gets shorter."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading in NUMBERS else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=bool(cut) and heading != cut)
    return table


def one_line(text: str) -> Text:
    """A text that is cut off at the end of its column."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def plan_table(plan: "Plan") -> Table:
    """The plan as a table: stage, state, why."""
    table = columns("stage", "state", "why", "last took")
    for stage in plan:
        expected = "" if stage.seconds is None or stage.state == "clean" else f"{stage.seconds:.0f} s"
        table.add_row(escape(stage.name), f"[{STATE_STYLE[stage.state]}]{stage.state}[/]", escape(stage.why), expected)
    return table


class LastingConsole(Console):
    """If the reader has gone (`parrotflow run | head`), the run continues silently."""

    def on_broken_pipe(self) -> None:
        """Do not exit, as rich would."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print a line; if the reader has gone, nothing."""
    LastingConsole(highlight=False).out(text, highlight=False)


class Follower:
    """Prints lines while something works, and in a terminal below them a view that renews itself."""

    def __init__(self) -> None:
        self.console = LastingConsole(highlight=False, soft_wrap=not sys.stdout.isatty())
        self.began = time.perf_counter()
        self._lock = threading.Lock()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(get_renderable=self._view, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Show no view any more."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        with self._lock:
            self.console.print(escape(text))

    def _view(self) -> RenderableType:
        raise NotImplementedError


class Terminal(Follower):
    """Prints a run as it works: each line after its stage's name, and in a terminal a table of the stages below."""

    def __init__(self, plan: "Plan") -> None:
        super().__init__()
        self.plan = plan
        self.started_at: dict[str, float] = {}
        self.ended: dict[str, StageEnded] = {}

    def __enter__(self) -> Self:
        self.console.print(plan_table(self.plan))
        self.console.print()
        return super().__enter__()

    def on_event(self, event: Event) -> None:
        """Print an event of the run."""
        match event:
            case StageStarted():
                with self._lock:
                    self.started_at[event.stage] = time.perf_counter()
                    self.ended.pop(event.stage, None)
                again = f", attempt {event.attempt}" if event.attempt > 1 else ""
                self._print(event.stage, f"[bold]started[/]{again}")
            case Lines():
                self._print_lines(event.stage, event.texts)
            case StageEnded():
                with self._lock:
                    self.ended[event.stage] = event
                    self.started_at.pop(event.stage, None)
                retry, outcome = event.retry_in_seconds, event.outcome
                later = "" if retry is None else f"; next attempt in {retry:g} s"
                style = RESULT_STYLE[outcome.result]
                self._print(event.stage, f"[{style}]{outcome.result}[/] in {outcome.seconds:.1f} s{later}")

    def summary(self, outcomes: Mapping[str, "StageOutcome"]) -> None:
        """What ran, what was cached and why; the metrics of what is up to date; what failed; what to try next."""
        if not self.plan.to_do:
            done = "Everything is up to date."
        else:
            table = columns("stage", "result", "seconds", "why")
            for stage, result, seconds in outcome_rows(self.plan, outcomes):
                style = RESULT_STYLE.get(result, "dim")
                table.add_row(escape(stage.name), f"[{style}]{result}[/]", seconds, escape(stage.why))
            self.console.print()
            self.console.print(table)
            done = f"{time.perf_counter() - self.began:.0f} s in total."
        shown = up_to_date(self.plan, outcomes)
        metrics = ", ".join(f"{name} {in_digits(value)}" for name, value in shown_metrics(shown).items())
        self.say(f"\n{done} {metrics}".rstrip())
        for outcome in outcomes.values():
            if outcome.result in ("failed", "refused"):
                self.console.print(f"\n[{RESULT_STYLE[outcome.result]}]{escape(outcome.name)} {outcome.result}[/]")
                # A refusal is not an error.
                self.say(outcome.message.removeprefix("error: ") if outcome.result == "refused" else outcome.message)
        if len(shown) == len(self.plan.stages):
            for stage in shown:
                if line := filled_in(stage.policy.show.next, quoted):
                    self.say(line)

    def _view(self) -> Table:
        """The stages that are not clean: state, time, why."""
        table = columns("stage", "state", "seconds", "why", cut="why")
        with self._lock:
            for stage in self.plan.to_do[:LIVE_ROWS]:
                ended, began = self.ended.get(stage.name), self.started_at.get(stage.name)
                if ended:
                    result = ended.outcome.result
                    state, seconds = f"[{RESULT_STYLE[result]}]{result}[/]", f"{ended.outcome.seconds:.0f}"
                elif began is not None:
                    state, seconds = "[bold]running[/]", f"{time.perf_counter() - began:.0f}{_of(stage.seconds)}"
                else:
                    state, seconds = "[dim]waiting[/]", ""
                table.add_row(escape(stage.name), state, seconds, one_line(stage.why))
        if len(self.plan.to_do) > LIVE_ROWS:
            table.add_row("...", f"and {len(self.plan.to_do) - LIVE_ROWS} more", "", "")
        return table

    def _print_lines(self, name: str, texts: Sequence[str]) -> None:
        """Print many lines at once: rich takes a millisecond a call."""
        with self._lock:
            if self.console.is_terminal:
                lines = [Text.assemble((f"{name:>9}", "blue"), f" │ {text}") for text in texts]
                self.console.print(Text("\n").join(lines))
            else:
                self.console.out("\n".join(f"{name:>9} │ {text}" for text in texts), highlight=False)

    def _print(self, name: str, markup: str) -> None:
        with self._lock:
            self.console.print(f"[blue]{escape(name):>9}[/] │ {markup}")


def in_digits(value: float) -> str:
    """At least four significant digits, thousands with commas."""
    return f"{value:,.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"


def quoted(value: str) -> str:
    """A value as a shell reads it, in double quotes where they suffice."""
    return shlex.quote(value) if set(value) & {*'"$`\\!\n'} else f'"{value}"'


def _of(seconds: float | None) -> str:
    return "" if seconds is None else f" of about {seconds:.0f}"
