"""`--check`: what the stored runs gave against what the runs give now, entry by entry."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flows.experiments.statistics import SIGNIFICANT
from flows.experiments.tables import Entry, Table

if TYPE_CHECKING:
    from flows.experiments.results import Results

Verdict = Literal["equal", "within intervals", "equal as printed", "different", "gone", "new"]

SUCCESSES: tuple[Verdict, ...] = ("equal", "within intervals", "equal as printed")
"""Of these a check does not fail."""


@dataclass(frozen=True)
class Compared:
    """One entry of a table, the exponent of one fit or the answer of one claim."""

    table: str
    """Or `fits`, or `claims`."""
    row: str
    column: str
    verdict: Verdict
    values: str
    """Both; empty where there is only one."""


def compare(stored: "Results", now: "Results") -> list[Compared]:
    """Each entry of each table, the exponent of each fit and the answer of each claim of the same file.

    Equal: the same number, printed alike, from as many runs. Within intervals: the new number is in the old one's 95 %
    interval, of an entry of one run in the run's own; a p value is on the same side of 0.05. Equal as printed: an entry
    that has no interval, with the same digits. Different is also an entry from fewer runs than the old one, and one
    that is marked as the best only in one of the tables.
    """
    compared = [
        found
        for old, new in zip([*stored.tables, exponents(stored)], [*now.tables, exponents(now)], strict=True)
        for found in compare_tables(old, new)
    ]
    for then, claim in zip(stored.claims, now.claims, strict=True):
        verdict: Verdict = "equal" if then.answer == claim.answer else "different"
        compared.append(Compared("claims", claim.says, "answer", verdict, f"{then.answer}, now {claim.answer}"))
    return compared


def exponents(results: "Results") -> Table:
    """The fits as a table: of each its exponent with the 95 % interval."""
    laws = results.fits
    entries = [
        Entry(f"{law.b:.4g}", law.n, law.n, law.b, law.b_low, law.b_high, None, name, results.data.frame)
        for name, law in laws.items()
    ]
    return Table("", "", "fits", "", [], ["exponent"], [[name] for name in laws], [[entry] for entry in entries], [])


def compare_tables(old: Table, new: Table) -> Iterator[Compared]:
    """Each entry of two tables, also one that only one of them has."""
    before, after = ({(row, column): entry for row, column, entry in table.each()} for table in (old, new))
    for row, column in before | after:
        then, now = before.get((row, column)), after.get((row, column))
        if then is None or now is None:
            yield Compared(new.name, row, column, "new" if then is None else "gone", "")
        else:
            yield Compared(new.name, row, column, _verdict(then, now), f"{_told(then)}, now {_told(now)}")


def _told(entry: Entry) -> str:
    marked = "the best, " if entry.best else ""
    return f"{' '.join(filter(None, (entry.text or 'none', entry.extra)))} ({marked}n = {entry.n})"


def _verdict(then: Entry, now: Entry) -> Verdict:
    if now.n < then.n or now.best != then.best:
        return "different"
    if (then.value, then.low, then.high, then.n) == (now.value, now.low, now.high, now.n):
        return "equal" if then.extra == now.extra else "different"
    if now.value is None:
        return "different"
    if then.is_p and then.value is not None:
        return "within intervals" if (then.value < SIGNIFICANT) == (now.value < SIGNIFICANT) else "different"
    low, high = (then.data_low, then.data_high) if then.low is None else (then.low, then.high)
    if low is not None and high is not None:
        return "within intervals" if low <= now.value <= high else "different"
    return "equal as printed" if (then.text, then.n) == (now.text, now.n) else "different"


def comparison(compared: Sequence[Compared]) -> tuple[list[str], bool]:
    """What was found, in lines, and whether no entry is different, gone or new."""
    lines = [
        f"{found.table}, {found.row}, {found.column}: {found.verdict}: {found.values}"
        for found in compared
        if found.verdict != "equal"
    ]
    summary = f"{len(compared) - len(lines)} of {len(compared)} entries are equal"
    return [*lines, summary], all(found.verdict in SUCCESSES for found in compared)
