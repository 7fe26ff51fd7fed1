"""What a run shows at its end besides its states: what ran and why, metrics and their changes, curves, card.

All of it is data; what it looks like is the business of who shows it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flows.run.outcome import outcome_rows, up_to_date
from flows.show.metrics import all_metrics, compare, filled_in, read_curves, shown_metrics

if TYPE_CHECKING:
    from flows.plan.graph import Plan
    from flows.run.outcome import StageOutcome


@dataclass(frozen=True, slots=True)
class Artifact:
    """Something to show."""

    key: str
    kind: Literal["markdown", "table", "link", "curves"]
    """A text, a list of rows, an address, or figures with their points."""
    data: Any
    description: str


def slug(name: str) -> str:
    """As Prefect wants keys: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def run_artifacts(
    plan: "Plan", outcomes: Mapping[str, "StageOutcome"], before: Mapping[str, float]
) -> Iterator[Artifact]:
    """The artifacts of a run, without those of stages that it did not change. `before`: the metrics at its start."""
    page = outcome_page(plan, outcomes)
    yield Artifact("pipeline", "markdown", page, "What ran, and why")
    changed = [
        stage
        for stage in up_to_date(plan, outcomes)
        if stage.name in outcomes and outcomes[stage.name].result in ("ran", "restored")
    ]
    if rows := compare(before, all_metrics(changed)):
        yield Artifact("metrics", "table", rows, "Metrics, this run and the one before")
    for stage in changed:
        show = stage.policy.show
        if figures := read_curves(show.curves):
            yield Artifact(f"curves-{stage.name}", "curves", figures, f"Curves of {stage.name}")
        if link := filled_in(show.link):
            yield Artifact(f"link-{stage.name}", "link", link, f"Result of {stage.name}")
        card = Path(filled_in(show.card))
        if card.is_file():
            text = card.read_text(encoding="utf-8").split("---\n", 2)[-1]
            text = f"`{card}`\n\n{text}"
            yield Artifact(f"card-{stage.name}", "markdown", text, f"Card of {stage.name}")


def outcome_page(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> str:
    """The Markdown page of a run: what ran, what was cached and why; and the metrics."""
    lines = ["| stage | result | seconds | why |", "|---|---|--:|---|"]
    for stage, result, seconds in outcome_rows(plan, outcomes):
        lines.append(f"| {_cell(stage.name)} | {result} | {seconds} | {_cell(stage.why)} |")
    metrics = shown_metrics(up_to_date(plan, outcomes))
    if metrics:
        lines += ["", "| metric | value |", "|---|--:|"]
        lines += [f"| {_cell(name)} | {value} |" for name, value in metrics.items()]
    for outcome in outcomes.values():
        if outcome.message and outcome.result == "refused" and outcome.message.startswith("|"):
            lines += ["", f"**{outcome.name} refused**", "", outcome.message]
        elif outcome.message:
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
