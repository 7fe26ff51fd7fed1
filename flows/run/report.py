"""The page of a finished run: metrics, curves and texts of its stages, as dvc.yaml's `meta.flow.show` names them.

No file, metric or stage is known here by its name.
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

INTERVALS = "interval_95"
"""In a report, the key of the intervals of its numbers, which have the same keys there."""


def shown_metrics(stages: Iterable["PlannedStage"]) -> dict[str, tuple[float, Sequence[float] | None]]:
    """The metrics that these stages show: label -> value and interval, if it has one; those that have one are first.

    To be given only stages that are up to date: after a failure the files hold an earlier run's numbers.
    """
    metrics: dict[str, tuple[float, Sequence[float] | None]] = {}
    for stage in reversed([*stages]):
        for label, location in stage.policy.show.metrics.items():
            file, _, key = location.partition(":")
            if isinstance(value := _value_in(Path(file), key), int | float):
                metrics[label] = value, _value_in(Path(file), f"{INTERVALS}.{key}")
    return dict(sorted(metrics.items(), key=lambda item: item[1][1] is None))


def run_facts(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> dict[str, Any]:
    """What ran and why, and the metrics with the intervals that their reports give, for `--json`."""
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
    """The value at a dotted key of a JSON file; None if the file is missing or no JSON, or has no such key."""
    with suppress(OSError, ValueError, RecursionError):
        return value_at(json.loads(file.read_bytes()), key)
    return None


def pages_of(stages: Iterable["PlannedStage"]) -> Iterator[tuple[str, str]]:
    """Title and path of each page for people that these stages have written."""
    for stage in stages:
        yield from ((title, page) for title, page in stage.policy.show.pages.items() if Path(page).is_file())


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


def outcome_rows(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> Iterator[tuple[str, str, str]]:
    """The name of each stage of the plan, its result, and the seconds that it took."""
    for stage in plan:
        if outcome := outcomes.get(stage.name):
            yield stage.name, outcome.result, f"{outcome.seconds:.1f}"
        else:
            yield stage.name, "cached" if stage.state == "clean" else "not started", ""


def up_to_date(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> list["PlannedStage"]:
    """The stages whose results on disk belong to their inputs: what was clean, and what this run brought up to date."""
    stale: set[str] = set()
    for stage in plan:
        good = outcomes[stage.name].good if stage.name in outcomes else stage.state == "clean"
        if not good or stale & set(stage.upstream):
            stale.add(stage.name)
    return [stage for stage in plan if stage.name not in stale]


def outcome_page(plan: "Plan", outcomes: Mapping[str, "StageOutcome"]) -> str:
    """The Markdown page of a run: what ran and what was cached; metrics; what failed; curves that it changed."""
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
    """The name of each stage whose results this run changed and that shows curves, and a picture as a data URL."""
    for stage in up_to_date(plan, outcomes):
        changed = stage.name in outcomes and outcomes[stage.name].result in ("ran", "restored", "recorded")
        panels = [panel for figure in stage.policy.show.curves if changed and (panel := panel_of(figure)).curves]
        if panels:
            yield stage.name, f"data:image/png;base64,{base64.b64encode(draw_curves(panels)).decode()}"


def panel_of(figure: "CurveFigure", live: Path | None = None) -> Panel:
    """A figure with the curves that have points; those in the folder `live`, if it is given."""
    curves: dict[str, Points] = {}
    for label, location in figure.series.items():
        file, _, column = location.partition(":")
        found = read_curves(live / Path(file).name if live else Path(file))
        curves |= found if column == EVERY_COLUMN else {label: found[column]} if column in found else {}
    return Panel(figure.title, figure.y, curves)
