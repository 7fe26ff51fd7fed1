"""The quality gate: does a result meet the conditions under which the next stage may run?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.dvc_repo.internals import open_repo
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
    """Each condition of each check. Raises UserError where a metric's file or key does not exist."""
    return [verdict for check in checks for verdict in _judge(check)]


def _judge(check: "Check") -> Iterator[Verdict]:
    value = read_value(check.metric)
    if value is None:
        raise UserError(f"dvc.yaml: gate on `{check.metric}`: no such file; name FILE:KEY of a metric")
    name = check.metric.partition(":")[2]
    if check.at_most is not None:
        yield Verdict(name, value, f"at most {check.at_most:g}", value <= check.at_most)
    if check.at_least is not None:
        yield Verdict(name, value, f"at least {check.at_least:g}", value >= check.at_least)
    allowed = f" (tolerance {check.tolerance:g})" if check.tolerance else ""
    if check.not_above and (bound := read_value(check.not_above, recorded=True)) is not None:
        yield Verdict(
            name, value, f"not above {bound:g}, as {check.not_above}{allowed}", value <= bound + check.tolerance
        )
    if check.not_below and (bound := read_value(check.not_below, recorded=True)) is not None:
        yield Verdict(
            name, value, f"not below {bound:g}, as {check.not_below}{allowed}", value >= bound - check.tolerance
        )


def read_value(location: str, *, recorded: bool = False) -> float | None:
    """The number at FILE:KEY; None where the file does not exist. Raises UserError where the key holds no number.

    With `recorded`, a file that is missing is read as dvc.lock records it.
    """
    file, _, key = location.partition(":")
    path = Path(file)
    if not path.exists():
        found = recorded_file(file) if recorded else None
        if found is None:
            return None
        path = found
    value = read_key(path, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"dvc.yaml: gate on `{location}`: the value there is not a number")
    return float(value)


def recorded_file(file: str) -> Path | None:
    """An output of a stage as DVC's cache has it; None where no stage has ever written it.

    DVC deletes the outputs of a stage before it runs it. If the stage then fails, the bound that its gate compares with
    is gone from the workspace, and without it the gate would let anything pass. Raises UserError where the cache does
    not have it either.
    """
    with open_repo() as repo:
        out = next((out for out in repo.index.outs if str(out) == file and out.hash_info), None)
        if out is None:
            return None
        path = Path(out.cache.oid_to_path(out.hash_info.value)) if out.use_cache else Path(file)
    if not path.exists():
        raise UserError(f"dvc.yaml: gate: {file} is recorded in dvc.lock and missing; `dvc checkout {file}`")
    return path


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts in Markdown."""
    lines = ["| metric | value | condition | |", "|---|--:|---|---|"]
    for verdict in verdicts:
        lines.append(
            f"| {verdict.metric} | {verdict.value:g} | {verdict.condition} | {'yes' if verdict.holds else 'NO'} |"
        )
    return "\n".join(lines)
