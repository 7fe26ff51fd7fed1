"""One run from its start to its end: lock, checks, plan, stages, summary, artifacts. Who chains the stages is given.

Artifacts are what a run shows at its end besides its states: what ran and why, metrics and their changes, curves, card.
All of it is data; what it looks like is the business of who shows it. Numbers, curves and texts are those that stages
write, as dvc.yaml's `meta.flow.show` names them. No name is known here.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.dvc_repo.cache import low_space
from flows.dvc_repo.lock_file import keep_order, repair_after_kill
from flows.plan.graph import Plan, PlannedStage, make_plan, remember_seconds
from flows.plan.settings import CurveFigure, check_params, section_warnings
from flows.run.attempt import Attempts, run_result
from flows.run.dvc_server import DvcServer
from flows.run.locks import run_lock
from flows.run.outcome import (
    Artifact,
    RunOptions,
    RunResult,
    StageOutcome,
    curve_points,
    filled_in,
    outcome_rows,
    shown_metrics,
    up_to_date,
)
from flows.run.process import StageRunner
from flows.run.programs import preflight, redactor, secrets_of, unhidden
from flows.run.terminal import Terminal
from stages.runtime.entry import UserError
from stages.runtime.section import flatten

CarryOut = Callable[[Attempts, Callable[[], Iterable[Artifact]]], None]
"""Runs the stages, then calls the second argument, and shows what that gives."""


def run_pipeline(options: RunOptions, *, name: str = "`parrotflow run`", carry_out: CarryOut) -> RunResult:
    """Bring the stages of dvc.yaml up to date. Faults of the parameters are reported before anything starts.

    `carry_out` is called where there is something to do. Raises UserError.
    """
    with run_lock(name, wait=options.wait):
        check_params()
        for repaired in repair_after_kill():
            print(repaired, flush=True)
        plan = make_plan(options.targets, force=options.force, downstream=options.downstream)
        for warning in [*plan.warnings, *section_warnings([stage.name for stage in plan.to_do])]:
            print(f"warning: {warning}", flush=True)
        terminal = Terminal(plan)
        if not plan.to_do:
            terminal.summary({})
            return RunResult("Completed", f"0 of {len(plan.stages)} stages were not up to date")
        keep_order([stage.name for stage in plan])
        secrets = secrets_of(plan)
        for line in [
            *unhidden(secrets),
            *low_space([stage.name for stage in plan.to_do]),
            *preflight(plan, secrets, redactor(secrets)),
        ]:
            print(line, flush=True)
        before = read_before(plan)

        with contextlib.closing(DvcServer()) as server:
            run = Attempts(plan, options, StageRunner(server), terminal.on_event)

            def finish() -> Iterable[Artifact]:
                terminal.stop()
                for outcome in run.outcomes.values():
                    if outcome.result == "ran":
                        remember_seconds(outcome.name, outcome.seconds)
                terminal.summary(run.outcomes)
                return run_artifacts(plan, run.outcomes, before)

            with terminal:
                carry_out(run, finish)
        return run_result(run)


MOST_POINTS = 500
"""Of a curve that is shown."""


@dataclass(frozen=True, slots=True)
class Before:
    """What a run is compared with: what was there when it began."""

    metrics: Mapping[str, float]
    curves: Mapping[str, list[dict[str, Any]]]
    """Stage -> its figures (`read_curves`)."""


def read_before(plan: Plan) -> Before:
    """What there is now."""
    return Before(all_metrics(plan, plan), {stage.name: read_curves(stage.policy.show.curves) for stage in plan})


def run_artifacts(plan: Plan, outcomes: Mapping[str, StageOutcome], before: Before) -> Iterator[Artifact]:
    """The artifacts of a run, without those of stages that it did not change."""
    page = outcome_page(plan, outcomes)
    yield Artifact("pipeline", "markdown", page, "What ran, and why")
    changed = [
        stage
        for stage in up_to_date(plan, outcomes)
        if stage.name in outcomes and outcomes[stage.name].result in ("ran", "restored", "recorded")
    ]
    if rows := compare(before.metrics, all_metrics(changed, plan)):
        yield Artifact("metrics", "table", rows, "Metrics, this run and the one before")
    for stage in changed:
        show = stage.policy.show
        if figures := read_curves(show.curves):
            data = with_before(figures, before.curves.get(stage.name, ()))
            yield Artifact(f"curves-{stage.name}", "curves", data, f"Curves of {stage.name}")
        if link := filled_in(show.link):
            yield Artifact(f"link-{stage.name}", "link", link, f"Result of {stage.name}")
        card = Path(filled_in(show.card))
        if card.is_file():
            text = card.read_text(encoding="utf-8")
            if text.startswith("---\n"):  # its metadata
                text = text.split("\n---\n", 1)[-1]
            text = f"`{card}`\n\n{text}"
            yield Artifact(f"card-{stage.name}", "markdown", text, f"Card of {stage.name}")


def outcome_page(plan: Plan, outcomes: Mapping[str, StageOutcome]) -> str:
    """The Markdown page of a run: what ran, what was cached and why; and the metrics."""
    lines = ["| stage | result | seconds | why |", "|---|---|--:|---|"]
    for stage, result, seconds in outcome_rows(plan, outcomes):
        lines.append(f"| {_cell(stage.name)} | {result} | {seconds} | {_cell(stage.why)} |")
    metrics = shown_metrics(up_to_date(plan, outcomes))
    if metrics:
        lines += ["", "| metric | value |", "|---|--:|"]
        lines += [f"| {_cell(name)} | {value} |" for name, value in metrics.items()]
    for outcome in outcomes.values():
        if outcome.message:
            lines += [
                "",
                f"**{outcome.name} {outcome.result}**",
                "",
                "```",
                outcome.message.replace("```", "'''"),
                "```",
            ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def all_metrics(stages: Iterable[PlannedStage], plan: Plan) -> dict[str, float]:
    """Every number in the metrics files of some stages of a plan, by its dotted name.

    It begins with the file's stem, or with its whole path where the plan has another file of this stem.
    """
    metrics: dict[str, float] = {}
    stems = Counter(Path(file).stem for file in {file for stage in plan for file in stage.metrics})
    for file in sorted({file for stage in stages for file in stage.metrics}):
        if Path(file).exists() and file.endswith(".json"):
            try:
                values = json.loads(Path(file).read_text(encoding="utf-8"))
            except ValueError as error:
                raise UserError(f"{file}: dvc.yaml has it as metrics, and it is no JSON: {error}") from None
            stem = Path(file).stem
            name = stem if stems[stem] == 1 else str(Path(file).with_suffix(""))
            leaves = flatten(values, f"{name}.") if isinstance(values, dict) else {}
            metrics |= {
                name: value
                for name, value in leaves.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
    return metrics


def compare(before: Mapping[str, float], now: Mapping[str, float]) -> list[dict[str, Any]]:
    """A row for each metric: its value, the one before and the difference."""
    rows = []
    for name, value in now.items():
        old = before.get(name)
        difference = "" if old is None else f"{value - old:+.6g}"
        rows.append({"metric": name, "now": value, "before": "" if old is None else old, "difference": difference})
    return rows


def read_curves(figures: Iterable[CurveFigure]) -> list[dict[str, Any]]:
    """The figures with their points, thinned out to `MOST_POINTS` each; those without any are left out."""
    read = []
    for figure in figures:
        series = {label: points for label, location in figure.series.items() if (points := _points(location))}
        if series:
            read.append({"title": figure.title, "y": figure.y, "series": series})
    return read


def with_before(figures: Iterable[dict[str, Any]], before: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures, each with the series of the run before (`before`) that are not the same."""
    found = {figure["title"]: figure["series"] for figure in before}
    return [
        figure
        | {
            "before": {
                label: points
                for label, points in found.get(figure["title"], {}).items()
                if points != figure["series"].get(label)
            }
        }
        for figure in figures
    ]


def _points(location: str) -> list[tuple[float, float]]:
    file = Path(location.partition(":")[0])
    points = list(curve_points(file.read_text(encoding="utf-8"), location)) if file.is_file() else []
    step = max(1, -(-len(points) // MOST_POINTS))
    return [*points[:-1:step], *points[-1:]]
