"""What a person sees of a run: in the terminal while it goes and at its end, and as a page in Prefect."""

import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from flows.plan.graph import Plan, PlannedStage
from flows.run.process import StageOutcome

SHOWN_METRICS = {
    "bits per byte": ("reports/evaluate.json", "bits_per_byte"),
    "of gzip -9": ("reports/evaluate.json", "baselines_bits_per_byte.gzip_9"),
    "of xz -9": ("reports/evaluate.json", "baselines_bits_per_byte.xz_9"),
    "perplexity": ("reports/evaluate.json", "perplexity"),
    "tokens per second": ("reports/train_speed.json", "tokens_per_second"),
}
"""The figures under a run's summary, by file and key; those that a pipeline does not have are left out."""

DVC_WORDS = (
    "Running stage",
    "Generating lock file",
    "Updating lock file",
    "To track",
    "To enable auto staging",
    "git add",
    "dvc config core.autostage",
    "Use `dvc push`",
    "Verifying",
    "> python -m",
)

STATE_STYLE = {"clean": "dim", "run": "yellow", "maybe": "cyan", "restore": "green"}
GOOD = ("ran", "unchanged", "restored")
RESULT_STYLE = dict.fromkeys(GOOD, "green") | {
    "unchanged": "dim",
    "refused": "yellow",
    "failed": "red",
    "stopped": "yellow",
}

LIVE_ROWS = 20
"""Stages in the table that renews itself."""


def is_of_the_stage(line: str) -> bool:
    """Whether a line is the stage's own, not DVC's: the plan says what that says, and git is the user's."""
    return bool(line.strip()) and not line.strip().startswith(DVC_WORDS)


def plan_table(plan: Plan) -> Table:
    """The plan as a table: stage, state, why."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("stage", "state", "why"):
        table.add_column(heading, overflow="fold")
    table.add_column("last took", justify="right")
    for stage in plan:
        expected = "" if stage.seconds is None or stage.state == "clean" else f"{stage.seconds:.0f} s"
        table.add_row(stage.name, f"[{STATE_STYLE[stage.state]}]{stage.state}[/]", escape(stage.why), expected)
    return table


def outcome_rows(plan: Plan, outcomes: Mapping[str, StageOutcome]) -> list[tuple[PlannedStage, str, str]]:
    """Each stage of the plan with what became of it and the seconds it took."""
    rows: list[tuple[PlannedStage, str, str]] = []
    for stage in plan:
        outcome = outcomes.get(stage.name)
        result = outcome.result if outcome else ("cached" if stage.state == "clean" else "not started")
        rows.append((stage, result, f"{outcome.seconds:.1f}" if outcome else ""))
    return rows


def outcome_page(plan: Plan, outcomes: Mapping[str, StageOutcome]) -> str:
    """The Markdown page of a run: what ran, what was cached and why; and the metrics."""
    lines = ["| stage | result | seconds | why |", "|---|---|--:|---|"]
    for stage, result, seconds in outcome_rows(plan, outcomes):
        lines.append(f"| {stage.name} | {result} | {seconds} | {stage.why.replace('|', chr(92) + '|')} |")
    metrics = read_metrics()
    if metrics:
        lines += ["", "| metric | value |", "|---|--:|", *(f"| {name} | {value} |" for name, value in metrics.items())]
    failures = [f"**{outcome.name}**: {outcome.message}" for outcome in outcomes.values() if outcome.message]
    return "\n".join([*lines, *([""] if failures else []), *failures]) + "\n"


def read_metrics() -> dict[str, Any]:
    """The shown metrics of the results that lie here; no speed of 0, which says that nothing was left to train."""
    metrics: dict[str, Any] = {}
    for name, (file, key) in SHOWN_METRICS.items():
        value: Any = json.loads(Path(file).read_text(encoding="utf-8")) if Path(file).exists() else None
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value:
            metrics[name] = value
    return metrics


class Terminal:
    """Prints a run as it goes: each line behind its stage's name, and in a terminal a table of the stages below."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
        self.began = time.perf_counter()
        self.started_at: dict[str, float] = {}
        self.outcomes: dict[str, StageOutcome] = {}
        self._open = False
        self._lock = threading.Lock()
        self._live = Live(get_renderable=self._table, console=self.console, refresh_per_second=4, transient=True)

    def open(self) -> None:
        """Show the plan; what is open already stays so."""
        if self.plan.to_do and not self._open:
            self._open = True
            self.console.print(plan_table(self.plan))
            self.console.print()
            if self.console.is_terminal:
                self._live.start()

    def __enter__(self) -> "Terminal":
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def started(self, name: str) -> None:
        """A stage begins."""
        with self._lock:
            self.started_at[name] = time.perf_counter()
        self._print(name, "[bold]started[/]")

    def line(self, name: str, text: str) -> None:
        """A line of a stage's output."""
        self._print(name, escape(text))

    def ended(self, outcome: StageOutcome) -> None:
        """A stage has ended."""
        with self._lock:
            self.outcomes[outcome.name] = outcome
        style = RESULT_STYLE[outcome.result]
        self._print(outcome.name, f"[{style}]{outcome.result}[/] in {outcome.seconds:.1f} s")

    def _table(self) -> Table:
        """The stages that are not clean: state, time, why."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("stage", "state"):
            table.add_column(heading)
        table.add_column("seconds", justify="right")
        table.add_column("why", overflow="ellipsis", no_wrap=True)
        with self._lock:
            for stage in self.plan.to_do[:LIVE_ROWS]:
                outcome, began = self.outcomes.get(stage.name), self.started_at.get(stage.name)
                if outcome:
                    state, seconds = f"[{RESULT_STYLE[outcome.result]}]{outcome.result}[/]", f"{outcome.seconds:.0f}"
                elif began is not None:
                    state, seconds = "[bold]running[/]", f"{time.perf_counter() - began:.0f}{_of(stage.seconds)}"
                else:
                    state, seconds = "[dim]waits[/]", ""
                table.add_row(stage.name, state, seconds, escape(stage.why))
        if len(self.plan.to_do) > LIVE_ROWS:
            table.add_row("...", f"and {len(self.plan.to_do) - LIVE_ROWS} more", "", "")
        return table

    def summary(self, outcomes: Mapping[str, StageOutcome]) -> None:
        """What ran, what was cached and why; the main figures; what to try next."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("stage")
        table.add_column("result")
        table.add_column("seconds", justify="right")
        table.add_column("why", overflow="fold")
        for stage, result, seconds in outcome_rows(self.plan, outcomes):
            table.add_row(stage.name, f"[{RESULT_STYLE.get(result, 'dim')}]{result}[/]", seconds, escape(stage.why))
        self.console.print()
        self.console.print(table)
        metrics = ", ".join(
            f"{name} {value:,.4g}" if value < 1e4 else f"{name} {value:,.0f}" for name, value in read_metrics().items()
        )
        done = f"{time.perf_counter() - self.began:.0f} s in all." if self.plan.to_do else "Everything is up to date."
        self.console.print(f"\n{done} {metrics}".rstrip())
        for outcome in outcomes.values():
            if outcome.result in ("failed", "refused"):
                style = RESULT_STYLE[outcome.result]
                self.console.print(f"\n[{style}]{outcome.name} {outcome.result}[/]\n{escape(outcome.message)}")
        if Path("model").is_dir() and all(outcome.result in GOOD for outcome in outcomes.values()):
            self.console.print('Try it: parrotflow sample "def fibonacci("')

    def _print(self, name: str, markup: str) -> None:
        with self._lock:
            self.console.print(f"[blue]{name:>9}[/] │ {markup}")


def _of(seconds: float | None) -> str:
    return "" if seconds is None else f" of about {seconds:.0f}"
