"""What a run adds to its record at its end, to be shown: what ran and why, metrics and their changes, curves, card.

All of it is data; what it looks like is the business of who shows it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flows.run.record import Artifact
from flows.show.metrics import all_metrics, compare, filled_in, read_curves, shown_metrics
from flows.show.terminal import outcome_rows, up_to_date

if TYPE_CHECKING:
    from flows.plan.graph import Plan
    from flows.run.process import StageOutcome


def run_artifacts(
    plan: "Plan", outcomes: Mapping[str, "StageOutcome"], before: Mapping[str, float]
) -> Iterator[Artifact]:
    """The artifacts of a run, without those of stages that it did not change. `before`: the metrics at its start."""
    page = outcome_page(plan, outcomes)
    yield Artifact(key="pipeline", kind="markdown", data=page, description="What ran, and why")
    changed = [
        stage
        for stage in up_to_date(plan, outcomes)
        if stage.name in outcomes and outcomes[stage.name].result in ("ran", "restored")
    ]
    if rows := compare(before, all_metrics(changed)):
        yield Artifact(key="metrics", kind="table", data=rows, description="Metrics, this run and the one before")
    for stage in changed:
        show = stage.policy.show
        if figures := read_curves(show.curves):
            yield Artifact(
                key=f"curves-{stage.name}", kind="curves", data=figures, description="Curves", stage=stage.name
            )
        if link := filled_in(show.link):
            yield Artifact(key=f"link-{stage.name}", kind="link", data=link, description="Result", stage=stage.name)
        card = Path(filled_in(show.card))
        if card.is_file():
            text = card.read_text(encoding="utf-8").split("---\n", 2)[-1]
            text = f"`{card}`\n\n{text}"
            yield Artifact(key=f"card-{stage.name}", kind="markdown", data=text, description="Card", stage=stage.name)


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
