"""The numbers at the head of a model card (the Hub's model-index), compared with the reports that they are from."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from stages.formats.evaluation.harness import HARNESS_REPORT
from stages.formats.evaluation.verdicts import SCORE_REPORT
from stages.formats.reports import read_json
from stages.formats.revision.layout import CARD, EVALUATION, record_path
from stages.formats.revision.lock import NO_YAML
from stages.runtime.entry import first_line

HELD_OUT = "held-out"
"""The type of data set of the model's own evaluation."""

BENCHMARKS = tuple(map(record_path, (HARNESS_REPORT, SCORE_REPORT)))


def contradictions(folder: Path) -> Iterator[str]:
    """What the head of the card says of the evaluation and its reports do not."""
    if not (folder / CARD).is_file() or not (folder / EVALUATION).is_file():
        return
    try:
        results = list(results_of(head((folder / CARD).read_text(encoding="utf-8"))))
    except (*NO_YAML, UnicodeDecodeError) as error:
        yield f"its head is no model-index ({first_line(error)})"
        return
    evaluation = read_json(folder / EVALUATION)
    reports = [read_json(folder / path) for path in BENCHMARKS if (folder / path).is_file()]
    for data_set, metric, value in results:
        if data_set == HELD_OUT:
            expected = evaluation.get(metric) if isinstance(evaluation, dict) else None
            if value != expected:
                yield f"{metric} {value}, {EVALUATION} has {expected}"
        elif not any(value in numbers(report) for report in reports):
            yield f"{metric} of {data_set} {value}, which no recorded report has"


def head(card: str) -> Any:
    """The YAML between the first two lines of dashes; None where there is none."""
    start, dashes, rest = card.partition("---\n")
    return YAML(typ="safe", pure=True).load(StringIO(rest.partition("\n---")[0])) if not start and dashes else None


def results_of(values: Any) -> Iterator[tuple[str, str, float]]:
    """(type of data set, metric, value) of each result."""
    for model in (values or {}).get("model-index") or []:
        for result in model["results"]:
            for metric in result["metrics"]:
                yield str(result["dataset"]["type"]), str(metric["type"]), metric["value"]


def numbers(report: Any) -> Iterator[float]:
    """All numbers in a report."""
    left = [report]
    while left:
        value = left.pop()
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int | float):
            yield value
