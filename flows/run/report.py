"""What a run shows at its end: metrics, curves and texts that stages wrote, as dvc.yaml's `meta.flow.show` names them.

No file, metric or stage is known here by its name.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flows.run.curves import draw, read_series
from flows.run.outcome import StageOutcome, outcome_rows, up_to_date
from stages.runtime.section import read_key

if TYPE_CHECKING:
    from flows.plan.graph import Plan, PlannedStage


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


def outcome_page(plan: "Plan", outcomes: Mapping[str, StageOutcome]) -> str:
    """The Markdown page of a run: what ran, what was cached and why; the metrics; what failed."""
    lines = ["| stage | result | seconds | why |", "|---|---|--:|---|"]
    for stage, result, seconds in outcome_rows(plan, outcomes):
        lines.append(f"| {_cell(stage.name)} | {result} | {seconds} | {_cell(stage.why)} |")
    if metrics := shown_metrics(up_to_date(plan, outcomes)):
        lines += ["", "| metric | value |", "|---|--:|"]
        lines += [f"| {_cell(name)} | {value} |" for name, value in metrics.items()]
    for outcome in outcomes.values():
        if outcome.message:
            lines += ["", f"**{outcome.name} {outcome.result}**", ""]
            lines += ["```", outcome.message.replace("```", "'''"), "```"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def changed_curves(plan: "Plan", outcomes: Mapping[str, StageOutcome]) -> Iterator[tuple[str, str]]:
    """For each stage whose results this run changed and that shows curves: its name, and a picture as a data URL."""
    for stage in up_to_date(plan, outcomes):
        if stage.name in outcomes and outcomes[stage.name].result in ("ran", "restored", "recorded"):
            figures = [(figure, series) for figure in stage.policy.show.curves if (series := read_series(figure))]
            if figures:
                yield stage.name, draw(figures)
