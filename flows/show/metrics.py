"""The numbers, curves and texts that stages write, as dvc.yaml's `meta.flow.show` names them. No name is known here."""

import csv
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.plan.graph import PlannedStage
    from flows.plan.policy import Curves
from stages.runtime.entry import UserError
from stages.runtime.section import read_key

MOST_POINTS = 500
"""Of a curve that is shown."""


def shown_metrics(stages: Iterable["PlannedStage"]) -> dict[str, float]:
    """The metrics that these stages show, by label; no value of 0, such as the speed of a stage that had nothing to do.

    To be given only stages that are up to date: after a failure the files hold an earlier run's numbers.
    """
    metrics: dict[str, float] = {}
    for stage in stages:
        for label, location in stage.policy.show.metrics.items():
            file, _, key = location.partition(":")
            if value := read_key(Path(file), key):
                metrics[label] = value
    return metrics


def all_metrics(stages: Iterable["PlannedStage"]) -> dict[str, float]:
    """Every number in the metrics files of the stages, by its dotted name."""
    metrics: dict[str, float] = {}
    for file in sorted({file for stage in stages for file in stage.metrics}):
        if Path(file).exists() and file.endswith(".json"):
            try:
                values = json.loads(Path(file).read_text(encoding="utf-8"))
            except ValueError as error:
                raise UserError(f"{file}: dvc.yaml has it as metrics, and it is no JSON: {error}") from None
            metrics |= _numbers(values, f"{Path(file).stem}.")
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


def filled_in(template: str) -> str:
    """A text with each `{FILE:KEY}` replaced by its value; empty where one does not exist."""
    missing = False

    def value(found: re.Match[str]) -> str:
        nonlocal missing
        read = read_key(Path(found.group(1)), found.group(2))
        missing |= read is None
        return str(read)

    text = re.sub(r"\{([^:{}]+):([^{}]+)\}", value, template)
    return "" if missing else text


def read_curves(figures: Iterable["Curves"]) -> list[dict[str, Any]]:
    """The figures with their points, thinned out to `MOST_POINTS` each; those without any are left out."""
    read = []
    for figure in figures:
        series = {label: points for label, location in figure.series.items() if (points := _points(location))}
        if series:
            read.append({"title": figure.title, "y": figure.y, "series": series})
    return read


def _points(location: str) -> list[tuple[float, float]]:
    file, _, column = location.partition(":")
    if not Path(file).is_file():
        return []
    with Path(file).open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table, delimiter="\t" if file.endswith(".tsv") else ","))
    if not rows or column not in rows[0]:
        return []
    first = next(iter(rows[0]))
    step = -(-len(rows) // MOST_POINTS)
    kept = [*rows[: len(rows) - 1 : step], rows[-1]]
    return [(float(row[first]), float(row[column])) for row in kept if row[column]]
