"""What a run is asked, what happens in it, and how its stages and it end: values that everything else passes on."""

import csv
import io
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stages.runtime.entry import EXIT_CONTINUE, EXIT_TERMINATED, EXIT_UNAVAILABLE, UserError
from stages.runtime.section import read_key

if TYPE_CHECKING:
    from flows.plan.graph import Plan, PlannedStage

StageResult = Literal["ran", "unchanged", "restored", "recorded", "refused", "failed", "stopped"]

GOOD = ("ran", "unchanged", "restored", "recorded")
"""The results of a stage that is up to date."""

TRANSIENT = (EXIT_UNAVAILABLE, EXIT_CONTINUE, EXIT_TERMINATED, -signal.SIGTERM)
"""Exit codes of failures that may go away, or of a stage that was stopped and continues when it is started again. It
ends by the signal itself before it has a handler."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a user asks of a run."""

    targets: tuple[str, ...] = ()
    """Stages of dvc.yaml, with what they need; all stages when none is named."""
    _: KW_ONLY
    force: bool = False
    """Run them even if they are up to date."""
    downstream: bool = False
    """Run the targets and everything that depends on them, instead of what they need."""
    keep_going: bool = False
    """After a failure, keep running stages that do not depend on it."""
    pull: bool = False
    """Fetch missing results from the DVC remote."""
    wait: bool = False
    """Wait for another run in this folder instead of refusing."""


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """How a stage ended."""

    name: str
    result: StageResult
    """unchanged: DVC found that nothing changed after all (early cut-off); restored: from the run-cache; recorded: as
    somebody left its outputs, where it is frozen or has no command; refused: the stage, or one before it, refused its
    input; stopped: with the run, or given up early."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of all processes that it started and waited for."""
    message: str = ""
    """Of a failure: the stage's own error message."""
    exit_code: int = 0
    """Of the stage's command; negative for a signal."""
    begun: bool = True
    """False of a stage that was stopped before it started."""

    @property
    def transient(self) -> bool:
        """Whether the failure may go away by itself, so that a retry can help."""
        return self.result == "failed" and self.exit_code in TRANSIENT


@dataclass(frozen=True, slots=True)
class StageStarted:
    """An attempt at a stage begins."""

    stage: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that a stage printed, one after the other, with its secrets hidden."""

    stage: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageProgress:
    """How far a stage is that counts its work."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class StageEnded:
    """An attempt at a stage has ended, or the stage was refused without one."""

    stage: str
    outcome: StageOutcome
    retry_in_seconds: float | None = None
    """Until the next attempt; None where this was the last."""


Event = StageStarted | Lines | StageProgress | StageEnded


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    state: Literal["Completed", "Refused", "Failed", "Cancelled"]
    """Refused by a stage (exit code 77) is not a failure."""
    message: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """Something to show."""

    key: str
    kind: Literal["markdown", "table", "curves"]
    """A text, a list of rows, or figures with their points."""
    data: Any
    description: str


def slug(name: str) -> str:
    """As Prefect wants keys: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


class StoppedError(UserError):
    """The cells were stopped by a person."""

    exit_code = 1


def outcome_rows(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> list[tuple["PlannedStage", str, str]]:
    """Each stage of the plan with what became of it and the seconds it took."""
    rows: list[tuple[PlannedStage, str, str]] = []
    for stage in plan:
        outcome = outcomes.get(stage.name)
        result = outcome.result if outcome else ("cached" if stage.state == "clean" else "not started")
        rows.append((stage, result, f"{outcome.seconds:.1f}" if outcome else ""))
    return rows


def up_to_date(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> list["PlannedStage"]:
    """The stages whose results on disk belong to their inputs: what was clean, and what this run brought up to date."""
    stale: set[str] = set()
    for stage in plan:
        good = outcomes[stage.name].result in GOOD if stage.name in outcomes else stage.state == "clean"
        if not good or stale & set(stage.upstream):
            stale.add(stage.name)
    return [stage for stage in plan if stage.name not in stale]


def shown_metrics(stages: Iterable["PlannedStage"]) -> dict[str, float]:
    """The metrics that these stages show, by label.

    To be given only stages that are up to date: after a failure the files hold an earlier run's numbers.
    """
    metrics: dict[str, float] = {}
    for stage in stages:
        for label, location in stage.policy.show.metrics.items():
            file, _, key = location.partition(":")
            if (value := read_key(Path(file), key)) is not None:
                metrics[label] = value
    return metrics


def filled_in(template: str, form: Callable[[str], str] = str) -> str:
    """A text with each `{FILE:KEY}` replaced by its value in this form; empty where one does not exist."""
    missing = False

    def value(found: re.Match[str]) -> str:
        nonlocal missing
        read = read_key(Path(found.group(1)), found.group(2))
        missing |= read is None
        return form(str(read))

    text = re.sub(r"\{([^:{}]+):([^{}]+)\}", value, template)
    return "" if missing else text


def curve_points(text: str, location: str) -> Iterator[tuple[float, float]]:
    """The points of a curve, FILE:COLUMN, in its file's text, of which the first column is the horizontal axis.

    A row is left out where one of the two is empty or no number.
    """
    file, _, column = location.partition(":")
    with suppress(csv.Error):
        for row in csv.DictReader(io.StringIO(text), delimiter="\t" if file.endswith(".tsv") else ","):
            with suppress(TypeError, ValueError):
                yield float(next(iter(row.values()))), float(row.get(column) or "")
