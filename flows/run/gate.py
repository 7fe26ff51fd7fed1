"""The quality gate: does a result meet the conditions under which the next stage may run?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.show.metrics import read_key
from stages.runtime.entry import UserError

if TYPE_CHECKING:
    from flows.plan.policy import Check


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition and how it came out."""

    metric: str
    value: float
    condition: str
    """With the bound's value."""
    holds: bool


def judge(checks: Sequence["Check"]) -> list[Verdict]:
    """Each check that has a bound. Raises UserError where a metric's file or key does not exist, or is no number."""
    return [
        Verdict(check.metric.partition(":")[2], value, f"at most {check.at_most:g}", value <= check.at_most)
        for check in checks
        for value in [read_value(check.metric)]
        if check.at_most is not None
    ]


def read_value(location: str) -> float:
    """The number at FILE:KEY."""
    file, _, key = location.partition(":")
    if not Path(file).exists():
        raise UserError(f"dvc.yaml: gate on `{location}`: no such file; name FILE:KEY of a metric")
    value = read_key(Path(file), key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"dvc.yaml: gate on `{location}`: the value there is not a number")
    return float(value)


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts in Markdown."""
    lines = ["| metric | value | condition | |", "|---|--:|---|---|"]
    for verdict in verdicts:
        lines.append(
            f"| {verdict.metric} | {verdict.value:g} | {verdict.condition} | {'yes' if verdict.holds else 'NO'} |"
        )
    return "\n".join(lines)
