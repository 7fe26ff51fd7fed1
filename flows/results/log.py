"""`parrotflow log`: a line for each run of this folder and for each cell of its experiments.

A run appends a line to `.parrotflow/runs.jsonl` when it begins and when it ends; a killed run has only the first. The
second has the entries of dvc.lock, with which `parrotflow compare` finds the run's outputs.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.dvc_repo import git, has_commit
from flows.experiments.experiment import EXPERIMENTS
from flows.experiments.record import RUNS_FILE, append_run, recorded_lines, recorded_runs
from flows.plan.changes import Reason
from flows.results.recorded import Recorded, figures_in
from flows.run.locks import lock_holder
from flows.run.outcome import AsJson, RunResult
from flows.run.terminal import columns
from stages.formats.revision.provenance import RECEIPT
from stages.runtime.errors import STATE_DIR
from stages.runtime.section import Section, differences, read_params_file

if TYPE_CHECKING:
    from flows.plan.graph import Plan

RUN_LOG = STATE_DIR / RUNS_FILE

ENDS = {"Completed": "finished", "Refused": "refused", "Failed": "failed", "Cancelled": "stopped"}
"""State of a run in Prefect -> state in the log."""

REASON_KINDS = ("parameter", "data", "library", "command", "code", "always", "asked", "output", "made")
"""Kinds of reasons in the order in which they are shown. Other kinds are consequences of these."""

RESULT_KINDS = ("output", "made")
"""Kinds that are shown only if there is no other reason."""

COMMIT_DIGITS = 12

MAX_CHANGES = 3
"""The number of changes in a line; `--json` has all of them."""

WIDE, PIPED_WIDTH = 120, 160
"""The terminal width from which all columns are shown, and the width of output to a pipe or file."""


class LoggedRun(Section):
    """A run of this folder."""

    model_config = ConfigDict(extra="ignore")

    name: str
    """A number counted from 1; for a cell, the name of its DVC experiment or its id."""
    began: str
    """ISO 8601; for a cell, when it ended."""
    changes: list[str]
    """Changes since the last run of its stages; for a cell, since the previous cell."""
    commit: str
    """HEAD when it began."""
    note: str = ""
    process: int = 0
    """The id of the process that ran it."""
    state: str = ""
    """finished, refused, failed or stopped; empty until it has ended."""
    seconds: float | None = None
    message: str = ""
    revision: str = ""
    """The revision that it published."""
    figures: dict[str, Any] = Field(default_factory=dict)
    """As in `figures_in`."""
    params: dict[str, Any] = Field(default_factory=dict)
    """The values of params.yaml when it began."""
    stages: dict[str, Any] = Field(default_factory=dict)
    """The entries of dvc.lock of the stages that were up to date at the end."""

    @property
    def title(self) -> str:
        """What changed, and the note, in one line."""
        return title_of(self.changes, self.note)


def title_of(changes: Sequence[str], note: str, between: str = "; ") -> str:
    """The first changes and the note."""
    parts = [*map(short_key, changes[:MAX_CHANGES])]
    if len(changes) > MAX_CHANGES:
        parts.append(f"{len(changes) - MAX_CHANGES} more")
    if note:
        parts.append(f'"{note}"')
    return between.join(parts)


def short_key(change: str) -> str:
    """Shorten a long key in a change: train.optimizer.betas 1 → 2 becomes betas 1 → 2."""
    key, space, values = change.partition(" ")
    parts = key.split(".")
    return f"{parts[-1] if len(parts) > 2 and ' → ' in values else key}{space}{values}"


def first_causes(plan: "Plan") -> list[str]:
    """Why the stages of a plan run, without consequences of other reasons.

    A stage that was stopped has no result to compare with: then the last run's parameters are.
    """
    if plan.is_first:
        return ["first run here"]
    reasons = [reason for stage in plan for reason in stage.reasons if reason.kind in REASON_KINDS]
    code = [reason.what for reason in reasons if reason.kind == "code"]
    changed = [reason for reason in reasons if reason.kind not in RESULT_KINDS] or reasons
    changed = [reason for reason in changed if not any(file.startswith(f"{reason.what}/") for file in code)]
    changes = [*dict.fromkeys(map(str, sorted(changed, key=lambda reason: REASON_KINDS.index(reason.kind))))]
    unfinished = [reason.what for stage in plan for reason in stage.reasons if reason.kind == "never run"]
    if unfinished and (runs := runs_here()) and runs[-1].params:
        changes = [*dict.fromkeys([*changes, *_changed(runs[-1].params, read_params_file())])]
    return changes or [f"{name} had not finished" for name in unfinished][:1]


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [str(Reason("parameter", key, old, new)) for key, old, new in differences("", before, now)]


def record_begin(plan: "Plan", note: str) -> LoggedRun:
    """Record that a run of a plan begins."""
    head = git(Path(), "rev-parse", f"--short={COMMIT_DIGITS}", "HEAD", check=False)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    run = LoggedRun(
        name=str(len(runs_here()) + 1),
        began=began,
        changes=first_causes(plan),
        commit=head,
        note=note,
        process=os.getpid(),
        params=read_params_file(),
    )
    append_run(RUN_LOG, run)
    return run


def record_end(run: LoggedRun, result: RunResult, recorded: Recorded, seconds: float) -> LoggedRun:
    """Record how a run ended, and its results."""
    receipt = next((recorded.json(Path(path)) for path in recorded.outs if Path(path).name == RECEIPT), None)
    ended = {"state": ENDS[result.state], "message": result.message, "seconds": round(seconds, 1)}
    made = {"revision": (receipt or {}).get("revision") or "", "figures": recorded.figures, "stages": recorded.stages}
    run = run.model_copy(update=ended | made)
    append_run(RUN_LOG, run)
    return run


def runs_here() -> list[LoggedRun]:
    """The runs of this folder, in order. A run without an end is running, or was killed."""
    runs = {run.name: run for run in recorded_lines(RUN_LOG, LoggedRun)}
    holder = lock_holder()

    def state(run: LoggedRun) -> str:
        return run.state or ("running" if f"(process {run.process}," in holder else "killed")

    return [run.model_copy(update={"state": state(run)}) for run in runs.values()]


def cells_here() -> Iterator[LoggedRun]:
    """Yield the recorded runs of cells by experiment, except those of other clones, whose commits git lacks."""
    commits = {*git(Path(), "for-each-ref", "--format=%(objectname)", "refs/exps", check=False).split()}
    for path in sorted(EXPERIMENTS.glob(f"*/{RUNS_FILE}")):
        before: dict[str, Any] = {}
        for run in recorded_runs(path):
            changed = _changed(before, run.params) if before else []
            before = run.params
            if run.commit in commits or (not run.commit and has_commit(run.baseline)):
                yield LoggedRun(
                    name=run.experiment or run.cell,
                    began=run.ended,
                    changes=changed,
                    commit=run.commit[:COMMIT_DIGITS],
                    note=f"cell of {path.parent.name}",
                    state=run.state,
                    message=run.message,
                    figures=figures_in(run.reports),
                )


def show_log(*, as_json: AsJson = False) -> dict[str, Any]:
    """List the runs of this folder, the newest first, with changes and results."""
    runs = sorted([*runs_here(), *cells_here()], key=lambda run: run.began, reverse=True)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    wide = console.width >= WIDE
    console.print(log_table(runs, wide=wide) if runs else "No runs here yet; run `parrotflow run`")
    if runs and not wide:
        console.print(
            f"\n{WIDE} columns also show tokens, steps and what was published; --json shows all.", style="dim"
        )
    return {"runs": [run.model_dump(mode="json", exclude={"params", "stages"}) for run in runs]}


def log_table(runs: Iterable[LoggedRun], *, wide: bool) -> Table:
    """A row for each run."""
    headings = ("run", "when", "what changed", "bits per byte", "took", "tokens (epochs)", "steps", "published")
    table = columns(*headings if wide else headings[:-3])
    for column in table.columns:
        column.no_wrap = column.header != "what changed"
    for run in runs:
        when = datetime.fromisoformat(run.began).astimezone()
        names = ("bits per byte", "interval_95", "steps", "tokens read", "epochs")
        bits, ends, steps, tokens, epochs = (run.figures.get(name) for name in names)
        interval = f" [{', '.join(f'{end:.2f}' for end in ends)}]" if ends else ""
        took = "" if run.seconds is None else f"{run.seconds:,.0f} s"
        cells = [
            escape(run.name if run.name.isdecimal() else run.name[-8:]),
            f"{when:%d %b %H:%M}",
            escape(title_of(run.changes, run.note, "\n")),
            escape(f"{bits:.3f}{interval}" if bits else ""),
            took if run.state == "finished" else f"{run.state} {took}".strip(),
            f"{tokens:,} ({epochs:.2f})" if tokens else "",
            str(steps or ""),
            run.revision,
        ]
        table.add_row(*cells[: len(table.columns)])
    return table
