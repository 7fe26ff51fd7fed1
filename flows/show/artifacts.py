"""What a run leaves in Prefect's UI: what ran and why, metrics beside the run before, curves, card, gate, progress."""

import base64
import io
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from flows.plan.graph import Plan
from flows.run.process import StageOutcome
from flows.show.terminal import outcome_page

CURVES = Path("reports/curves")
RECEIPTS = "published/*/receipt.json"

PROGRESS_SECONDS = 5.0
"""Between two updates of a progress bar."""

_COUNT = re.compile(r"(\d[\d,]*)\s*(?:/|of)\s*(\d[\d,]*)")


def publish(plan: Plan, outcomes: Mapping[str, StageOutcome], before: Mapping[str, float]) -> None:
    """All artifacts of a run; those of things that did not change are left out."""
    create_markdown_artifact(outcome_page(plan, outcomes), key="pipeline", description="What ran, and why")
    if not any(outcome.result in ("ran", "restored") for outcome in outcomes.values()):
        return
    if rows := compare(before, read_metrics(plan)):
        create_table_artifact(rows, key="metrics", description="Metrics, this run and the one before")
    if _ran(outcomes, "train") and CURVES.is_dir():
        create_image_artifact(
            curves_image(), key="learning-curves", description="Loss and learning rate over the steps"
        )
    if _ran(outcomes, "publish"):
        for receipt in sorted(Path().glob(RECEIPTS)):
            _published(receipt)


def _ran(outcomes: Mapping[str, StageOutcome], name: str) -> bool:
    return name in outcomes and outcomes[name].result in ("ran", "restored")


def _published(path: Path) -> None:
    receipt = json.loads(path.read_text(encoding="utf-8"))
    place = receipt["location"]
    if receipt["destination"] == "hub":
        from huggingface_hub import constants

        link = f"{constants.ENDPOINT}/{place}/tree/{receipt['commit']}"
        create_link_artifact(link, link_text=place, key="model", description="The published model and its card")
        return
    card = Path(place) / "main" / "README.md"
    if card.exists():
        text = card.read_text(encoding="utf-8").split("---\n", 2)[-1]
        where = f"`{card}` · revision `{receipt['revision']}` · receipt `{path}`\n\n"
        create_markdown_artifact(where + text, key="model-card", description="The published model's card")


def gate_page(stage: str, table: str) -> None:
    """The table of a stage's gate."""
    create_markdown_artifact(f"### Gate of {stage}\n\n{table}\n", key=f"gate-{slug(stage)}", description="Quality gate")


def read_metrics(plan: Plan) -> dict[str, float]:
    """Every number in the metrics files of the plan's stages, by its dotted name."""
    metrics: dict[str, float] = {}
    for file in sorted({file for stage in plan for file in stage.metrics}):
        if Path(file).exists() and file.endswith(".json"):
            metrics |= _numbers(json.loads(Path(file).read_text(encoding="utf-8")), f"{Path(file).stem}.")
    return metrics


def _numbers(values: Any, prefix: str) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for key, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict):
            numbers |= _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[f"{prefix}{key}"] = value
    return numbers


def compare(before: Mapping[str, float], now: Mapping[str, float]) -> list[dict[str, Any]]:
    """A row for each metric: its value, the one before and the difference."""
    rows = []
    for name, value in now.items():
        old = before.get(name)
        difference = "" if old is None else f"{value - old:+.6g}"
        rows.append({"metric": name, "now": value, "before": "" if old is None else old, "difference": difference})
    return rows


def curves_image() -> str:
    """The learning curves as a PNG in a data URL."""
    import matplotlib as mpl

    mpl.use("Agg")
    import pandas as pd
    from matplotlib import pyplot

    figure, (loss, rate) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name, label in (("training_loss", "training"), ("validation_loss", "held out")):
        curve = pd.read_csv(CURVES / f"{name}.tsv", sep="\t")
        loss.plot(curve["step"], curve[name], label=label, marker="" if len(curve) > 20 else "o", markersize=4)
    loss.set(title="loss", xlabel="step", ylabel="nats per token")
    loss.legend(frameon=False)
    curve = pd.read_csv(CURVES / "learning_rate.tsv", sep="\t")
    rate.plot(curve["step"], curve["learning_rate"])
    rate.set(title="learning rate", xlabel="step")
    for axes in (loss, rate):
        axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    pyplot.close(figure)
    return f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"


class ProgressArtifact:
    """A bar in Prefect's UI for a stage that counts its work: lines with `120/500` or `120 of 500`."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._artifact: UUID | None = None
        self._seen = time.monotonic()

    def see(self, line: str) -> None:
        """Take a line of the stage's output. Nothing is sent in a stage's first seconds, so short ones have no bar."""
        found = _COUNT.search(line)
        if not found or time.monotonic() - self._seen < PROGRESS_SECONDS:
            return
        done, total = (int(number.replace(",", "")) for number in found.groups())
        if total == 0 or done > total:
            return
        self._seen = time.monotonic()
        percent = 100.0 * done / total
        if self._artifact is None:
            created = create_progress_artifact(percent, key=f"progress-{slug(self.stage)}", description=self.stage)
            self._artifact = created if isinstance(created, UUID) else None
        else:
            update_progress_artifact(self._artifact, percent)


def slug(name: str) -> str:
    """As Prefect wants keys: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
