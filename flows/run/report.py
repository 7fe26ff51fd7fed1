"""What a run shows at its end: metrics, curves and texts that stages wrote, as dvc.yaml's `meta.flow.show` names them.

No file, metric or stage is known here by its name.
"""

import base64
import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.runtime.section import value_at

if TYPE_CHECKING:
    from flows.plan.graph import Plan, PlannedStage
    from flows.plan.settings import CurveFigure
    from flows.run.outcome import StageOutcome

Points = list[tuple[float, float]]


def shown_metrics(stages: Iterable["PlannedStage"]) -> dict[str, float]:
    """The metrics that these stages show, by label.

    To be given only stages that are up to date: after a failure the files hold an earlier run's numbers.
    """
    metrics: dict[str, float] = {}
    for stage in stages:
        for label, location in stage.policy.show.metrics.items():
            file, _, key = location.partition(":")
            if isinstance(value := _value_in(Path(file), key), int | float):
                metrics[label] = value
    return metrics


def _value_in(file: Path, key: str) -> Any:
    """The value at a dotted key of a JSON file; None if the file is missing or no JSON, or has no such key."""
    with suppress(OSError, ValueError, RecursionError):
        return value_at(json.loads(file.read_bytes()), key)
    return None


def filled_in(template: str, form: Callable[[str], str] = str) -> str:
    """A text with each `{FILE:KEY}` replaced by its value in this form; empty where one does not exist."""
    missing = False

    def value(found: re.Match[str]) -> str:
        nonlocal missing
        read = _value_in(Path(found.group(1)), found.group(2))
        missing |= read is None
        return form(str(read))

    text = re.sub(r"\{([^:{}]+):([^{}]+)\}", value, template)
    return "" if missing else text


def outcome_rows(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> Iterator[tuple[str, str, str, str]]:
    """Each stage of the plan: its name, what became of it, the seconds it took, and why it was begun."""
    for stage in plan:
        if outcome := outcomes.get(stage.name):
            yield stage.name, outcome.result, f"{outcome.seconds:.1f}", stage.why
        else:
            yield stage.name, "cached" if stage.state == "clean" else "not started", "", ""


def up_to_date(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> list["PlannedStage"]:
    """The stages whose results on disk belong to their inputs: what was clean, and what this run brought up to date."""
    stale: set[str] = set()
    for stage in plan:
        good = outcomes[stage.name].good if stage.name in outcomes else stage.state == "clean"
        if not good or stale & set(stage.upstream):
            stale.add(stage.name)
    return [stage for stage in plan if stage.name not in stale]


def outcome_page(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> str:
    """The Markdown page of a run: what ran, what was cached and why; metrics; what failed; curves that it changed."""
    lines = ["| stage | result | seconds | why |", "|---|---|--:|---|"]
    for row in outcome_rows(plan, outcomes):
        lines.append(f"| {' | '.join(map(_cell, row))} |")
    if metrics := shown_metrics(up_to_date(plan, outcomes)):
        lines += ["", "| metric | value |", "|---|--:|"]
        lines += [f"| {_cell(name)} | {value} |" for name, value in metrics.items()]
    for outcome in outcomes.values():
        if outcome.message:
            lines += ["", f"**{outcome.name} {outcome.result}**", ""]
            lines += ["```", outcome.message.replace("```", "'''"), "```"]
    for name, picture in changed_curves(plan, outcomes):
        lines += ["", f"**Curves of {name}**", "", f"![Curves of {name}]({picture})"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def changed_curves(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> Iterator[tuple[str, str]]:
    """For each stage whose results this run changed and that shows curves: its name, and a picture as a data URL."""
    for stage in up_to_date(plan, outcomes):
        if stage.name in outcomes and outcomes[stage.name].result in ("ran", "restored", "recorded"):
            figures = [(figure, series) for figure in stage.policy.show.curves if (series := read_series(figure))]
            if figures:
                yield stage.name, draw(figures)


def curve_points(text: str, location: str) -> Iterator[tuple[float, float]]:
    """The points of the curve FILE:COLUMN in its file's text; the first column is the horizontal axis.

    Rows without both numbers are skipped.
    """
    file, _, column = location.partition(":")
    with suppress(csv.Error):
        for row in csv.DictReader(io.StringIO(text), delimiter="\t" if file.endswith(".tsv") else ","):
            with suppress(TypeError, ValueError):
                yield float(next(iter(row.values()))), float(row.get(column) or "")


def read_series(figure: "CurveFigure") -> dict[str, Points]:
    """The curves of a figure by label; those without any points are left out."""
    return {label: points for label, location in figure.series.items() if (points := _points(location))}


def _points(location: str) -> Points:
    file = Path(location.partition(":")[0])
    return list(curve_points(file.read_text(encoding="utf-8"), location)) if file.is_file() else []


def draw(figures: list[tuple["CurveFigure", dict[str, Points]]]) -> str:
    """Figures with their curves as a PNG in a data URL."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(
        1, len(figures), figsize=(5 * len(figures), 3.6), layout="constrained", squeeze=False
    )
    for axis, (figure, series) in zip(axes[0], figures, strict=True):
        for label, points in series.items():
            steps, values = zip(*points, strict=True)
            axis.plot(steps, values, label=label, marker="" if len(points) > 20 else "o", markersize=4)
        axis.set(title=figure.title, xlabel="step", ylabel=figure.y)
        if len(series) > 1:
            axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    canvas.savefig(picture, format="png", dpi=110)
    pyplot.close(canvas)
    return f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"
