"""One run from its start to its end: lock, checks, plan, stages, summary, artifacts. Who chains the stages is given.

Artifacts are what a run shows at its end besides its states: a page with what ran, why, and the metrics; and curves.
Numbers, curves and texts are those that stages write, as dvc.yaml's `meta.flow.show` names them. No name is known here.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.dvc_repo.cache import low_space
from flows.dvc_repo.lock_file import keep_order, repair_after_kill
from flows.plan.graph import Plan, make_plan, remember_seconds
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
    outcome_rows,
    shown_metrics,
    up_to_date,
)
from flows.run.process import StageRunner
from flows.run.programs import checks, redactor
from flows.run.terminal import Terminal

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
        for line in [
            *low_space([stage.name for stage in plan.to_do]),
            *checks(plan, redactor(), alone=False),
        ]:
            print(line, flush=True)

        with contextlib.closing(DvcServer()) as server:
            run = Attempts(plan, options, StageRunner(server), terminal.on_event)

            def finish() -> Iterable[Artifact]:
                terminal.stop()
                for outcome in run.outcomes.values():
                    if outcome.result == "ran":
                        remember_seconds(outcome.name, outcome.seconds)
                terminal.summary(run.outcomes)
                return run_artifacts(plan, run.outcomes)

            with terminal:
                carry_out(run, finish)
        return run_result(run)


MOST_POINTS = 500
"""Of a curve that is shown."""


def run_artifacts(plan: Plan, outcomes: Mapping[str, StageOutcome]) -> Iterator[Artifact]:
    """The page of a run, and the curves of the stages whose results it changed."""
    yield Artifact("pipeline", "markdown", outcome_page(plan, outcomes), "What ran, and why")
    for stage in up_to_date(plan, outcomes):
        changed = stage.name in outcomes and outcomes[stage.name].result in ("ran", "restored", "recorded")
        if changed and (figures := read_curves(stage.policy.show.curves)):
            yield Artifact(f"curves-{stage.name}", "curves", figures, f"Curves of {stage.name}")


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


def read_curves(figures: Iterable[CurveFigure]) -> list[dict[str, Any]]:
    """The figures with their points, thinned out to `MOST_POINTS` each; those without any are left out."""
    read = []
    for figure in figures:
        series = {label: points for label, location in figure.series.items() if (points := _points(location))}
        if series:
            read.append({"title": figure.title, "y": figure.y, "series": series})
    return read


def _points(location: str) -> list[tuple[float, float]]:
    file = Path(location.partition(":")[0])
    points = list(curve_points(file.read_text(encoding="utf-8"), location)) if file.is_file() else []
    step = max(1, -(-len(points) // MOST_POINTS))
    return [*points[:-1:step], *points[-1:]]
