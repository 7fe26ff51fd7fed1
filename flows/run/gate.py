"""The quality gate: does a result meet the conditions under which the next stage may run?"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.plan.policy import Check
from stages.runtime.entry import UserError


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition and how it came out."""

    metric: str
    value: float
    condition: str
    """In words, with the bound's value."""
    holds: bool


def judge(checks: Sequence[Check]) -> list[Verdict]:
    """Each condition of each check. Raises UserError where a metric's file or key does not exist."""
    return [verdict for check in checks for verdict in _judge(check)]


def _judge(check: Check) -> Iterator[Verdict]:
    value = read_value(check.metric)
    if value is None:
        raise UserError(f"dvc.yaml: gate on `{check.metric}`: no such file; name FILE:KEY of a metric")
    name = check.metric.partition(":")[2]
    if check.at_most is not None:
        yield Verdict(name, value, f"at most {check.at_most:g}", value <= check.at_most)
    if check.at_least is not None:
        yield Verdict(name, value, f"at least {check.at_least:g}", value >= check.at_least)
    allowed = f" (tolerance {check.tolerance:g})" if check.tolerance else ""
    if check.not_above and (bound := read_value(check.not_above)) is not None:
        yield Verdict(
            name, value, f"not above {bound:g}, as {check.not_above}{allowed}", value <= bound + check.tolerance
        )
    if check.not_below and (bound := read_value(check.not_below)) is not None:
        yield Verdict(
            name, value, f"not below {bound:g}, as {check.not_below}{allowed}", value >= bound - check.tolerance
        )


def read_value(place: str) -> float | None:
    """The number at FILE:KEY; None where the file does not exist. Raises UserError where the key holds no number."""
    file, _, key = place.partition(":")
    if not Path(file).exists():
        return None
    value: Any = json.loads(Path(file).read_text(encoding="utf-8"))
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"dvc.yaml: gate on `{place}`: no number stands there")
    return float(value)


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts in Markdown."""
    lines = ["| metric | value | condition | |", "|---|--:|---|---|"]
    for verdict in verdicts:
        lines.append(
            f"| {verdict.metric} | {verdict.value:g} | {verdict.condition} | {'yes' if verdict.holds else 'NO'} |"
        )
    return "\n".join(lines)
