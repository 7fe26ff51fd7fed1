"""`--check`: what the stored runs gave against what the runs give now, entry by entry."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from flows.experiments.claims import CheckedClaim
from flows.experiments.statistics import SIGNIFICANT, PowerLaw
from flows.experiments.tables import Entry, Table

Verdict = Literal["equal", "within intervals", "equal as printed", "different", "gone", "new"]

SUCCESSES: tuple[Verdict, ...] = ("equal", "within intervals", "equal as printed")
"""Of these a check does not fail."""

Compared = tuple[str, str, Verdict, str]
"""Row, column, verdict and the two values."""


def compare_tables(old: Table, new: Table) -> list[Compared]:
    """Each entry of two tables.

    Equal: the same number, printed alike, from as many runs. Within intervals: the new number is in the old one's 95 %
    interval, of an entry of one run in the run's own; a p value is on the same side of 0.05. Equal as printed: an entry
    of one run that has no interval, with the same digits. Different is also an entry from fewer runs than the old one,
    and one that is marked as the best only in one of the tables.
    """
    before, after = old.by_place(), new.by_place()
    compared: list[Compared] = []
    for place in {**before, **after}:
        levels, column = place
        named = (", ".join(levels), column.heading)
        then, now = before.get(place), after.get(place)
        if then is None or now is None:
            compared.append((*named, "new" if then is None else "gone", ""))
            continue
        compared.append((*named, _verdict(then, now, column.holds == "p values"), f"{_told(then)}, now {_told(now)}"))
    return compared


def _told(entry: Entry) -> str:
    marked = "the best, " if entry.best else ""
    return f"{' '.join(filter(None, (entry.text or 'none', entry.extra)))} ({marked}n = {entry.n})"


def _verdict(then: Entry, now: Entry, is_test: bool) -> Verdict:
    if now.n < then.n or now.best != then.best:
        return "different"
    if (then.value, then.sd, then.n) == (now.value, now.sd, now.n):
        return "equal" if then.extra == now.extra else "different"
    if is_test and then.value is not None and now.value is not None:
        return "within intervals" if (then.value < SIGNIFICANT) == (now.value < SIGNIFICANT) else "different"
    if then.n == 1 and then.low is None:
        return _within(now.value, then.data_low, then.data_high, (then.text, then.n) == (now.text, now.n))
    return _within(now.value, then.low, then.high, False)


def _within(value: float | None, low: float | None, high: float | None, equal_as_printed: bool) -> Verdict:
    if value is not None and low is not None and high is not None:
        return "within intervals" if low <= value <= high else "different"
    return "equal as printed" if equal_as_printed else "different"


def compare_fits(old: Mapping[str, PowerLaw], new: Mapping[str, PowerLaw]) -> list[Compared]:
    """The exponent of each fit. Within intervals: the new one is in the 95 % interval of the old one.

    Different is also one through fewer runs.
    """
    compared: list[Compared] = []
    for name in {**old, **new}:
        then, now = old.get(name), new.get(name)
        if then is None or now is None:
            compared.append((name, "exponent", "new" if then is None else "gone", ""))
            continue
        verdict: Verdict = "equal"
        if (then.b, then.b_low, then.b_high, then.n) != (now.b, now.b_low, now.b_high, now.n):
            alike = (f"{then.b:.4g}", then.n) == (f"{now.b:.4g}", now.n)
            verdict = "different" if now.n < then.n else _within(now.b, then.b_low, then.b_high, alike)
        values = f"{then.b:.4g} (n = {then.n}), now {now.b:.4g} (n = {now.n})"
        compared.append((name, "exponent", verdict, values))
    return compared


def compare_claims(old: Iterable[CheckedClaim], new: Iterable[CheckedClaim]) -> list[Compared]:
    """The answer of each claim of one file."""
    return [
        (now.says, "answer", "equal" if then.answer == now.answer else "different", f"{then.answer}, now {now.answer}")
        for then, now in zip(old, new, strict=True)
    ]


def comparison(compared: Sequence[tuple[str, *Compared]]) -> tuple[list[str], bool]:
    """What was found, in lines, and whether no entry is different, gone or new."""
    lines = [f"{table}, {row}, {column}: {verdict}: {values}" for table, row, column, verdict, values in compared]
    told = [line for line, entry in zip(lines, compared, strict=True) if entry[3] != "equal"]
    told.append(f"{len(compared) - len(told)} of {len(compared)} entries are equal")
    return told, all(entry[3] in SUCCESSES for entry in compared)
