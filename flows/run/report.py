"""The page of a finished run: the metrics, curves and texts that the stages' `meta.flow.show` in dvc.yaml lists.

This module has no names of files, metrics or stages.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.formats.curves import EVERY_COLUMN, Panel, Points, draw_curves, read_curves
from stages.formats.pages import code_block, in_digits, markdown_table
from stages.runtime.preflight import LOCK_FILE
from stages.runtime.section import value_at

if TYPE_CHECKING:
    from flows.plan.graph import Plan, PlannedStage
    from flows.plan.settings import CurveFigure
    from flows.run.outcome import StageOutcome


def shown_metrics(stages: Iterable["PlannedStage"]) -> dict[str, tuple[float, Sequence[float] | None]]:
    """Return the metrics that these stages show, by label: value and 95 % interval, if any; those with one are first.

    The stages must be up to date: after a failure the files have an earlier run's numbers. A report has the interval of
    the number at KEY at `interval_95.KEY`.
    """
    metrics: dict[str, tuple[float, Sequence[float] | None]] = {}
    for stage in reversed([*stages]):
        for label, location in stage.policy.show.metrics.items():
            file, _, key = location.partition(":")
            if isinstance(value := _value_in(Path(file), key), int | float):
                metrics[label] = value, _value_in(Path(file), f"interval_95.{key}")
    return dict(sorted(metrics.items(), key=lambda item: item[1][1] is None))


def run_facts(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> dict[str, Any]:
    """Return what ran and why, and the metrics with their intervals, for `--json`."""
    why, metrics = {stage.name: stage.why for stage in plan}, shown_metrics(up_to_date(plan, outcomes))
    return {
        "stages": [
            {"stage": name, "result": result, "why": why[name], "seconds": float(seconds or 0)}
            for name, result, seconds in outcome_rows(plan, outcomes)
        ],
        "metrics": {label: {"value": value, "interval_95": ends} for label, (value, ends) in metrics.items()},
        "record": LOCK_FILE.as_posix(),
    }


def _value_in(file: Path, key: str) -> Any:
    """Return the value at a dotted key of a JSON file; None if the file is missing or invalid, or has no such key."""
    with suppress(OSError, ValueError, RecursionError):
        return value_at(json.loads(file.read_bytes()), key)
    return None


def pages_of(stages: Iterable["PlannedStage"]) -> Iterator[tuple[str, str]]:
    """Yield the title and path of each page that these stages have written."""
    for stage in stages:
        yield from ((title, page) for title, page in stage.policy.show.pages.items() if Path(page).is_file())


def filled_in(template: str, form: Callable[[str], str] = str) -> str:
    """Replace each `{FILE:KEY}` in a text by its value, passed through `form`; return "" if one does not exist."""
    missing = False

    def fill(field: re.Match[str]) -> str:
        nonlocal missing
        value = _value_in(Path(field.group(1)), field.group(2))
        missing |= value is None
        return form(str(value))

    text = re.sub(r"\{([^:{}]+):([^{}]+)\}", fill, template)
    return "" if missing else text


def outcome_rows(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> Iterator[tuple[str, str, str]]:
    """Yield each stage's name, result, and seconds."""
    for stage in plan:
        if outcome := outcomes.get(stage.name):
            yield stage.name, outcome.result, f"{outcome.seconds:.1f}"
        else:
            yield stage.name, stage.state if stage.state == "up to date" else "not started", ""


def up_to_date(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> list["PlannedStage"]:
    """Return the stages whose results on disk match their inputs, before the run or since."""
    stale: set[str] = set()
    for stage in plan:
        good = outcomes[stage.name].good if stage.name in outcomes else stage.state == "up to date"
        if not good or stale & set(stage.upstream):
            stale.add(stage.name)
    return [stage for stage in plan if stage.name not in stale]


def outcome_page(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> str:
    """Return the Markdown page of a run: results of the stages, metrics, error messages, and changed curves."""
    parts: list[str] = [markdown_table(("stage", "result", "seconds"), outcome_rows(plan, outcomes), left=2)]
    if metrics := shown_metrics(up_to_date(plan, outcomes)):
        parts.append(
            markdown_table(("metric", "value"), ((name, in_digits(value)) for name, (value, _) in metrics.items()))
        )
    for outcome in outcomes.values():
        if outcome.message:
            parts += [f"**{outcome.name} {outcome.result}**\n", code_block(outcome.message, "text")]
    for name, picture in changed_curves(plan, outcomes):
        parts += [f"**Curves of {name}**\n", f"![Curves of {name}]({picture})\n"]
    return "\n".join(parts)


def changed_curves(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> Iterator[tuple[str, str]]:
    """Yield the name of each stage whose curves this run changed, and a picture of them as a data URL."""
    for stage in up_to_date(plan, outcomes):
        changed = stage.name in outcomes and outcomes[stage.name].result in ("ran", "restored", "recorded")
        panels = [panel for figure in stage.policy.show.curves if changed and (panel := panel_of(figure)).curves]
        if panels:
            yield stage.name, f"data:image/png;base64,{base64.b64encode(draw_curves(panels)).decode()}"


def panel_of(figure: "CurveFigure", live: Path | None = None) -> Panel:
    """Read a figure's curves, if one has two points; those of a running training are in the folder `live`."""
    curves: dict[str, Points] = {}
    for label, location in figure.series.items():
        file, _, column = location.partition(":")
        columns = read_curves(live / Path(file).name if live else Path(file))
        curves |= columns if column == EVERY_COLUMN else {label: columns[column]} if column in columns else {}
    return Panel(figure.title, figure.y, curves if any(len(points) > 1 for points in curves.values()) else {})
