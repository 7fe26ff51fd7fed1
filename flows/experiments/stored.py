"""Results as they are stored: `experiments/NAME/SIZE/tables/TABLE.json`, fits.json and claims.json.

Every form of a table is rendered from it, every entry leads to its runs, and later results are compared with these.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from flows.experiments.statistics import SIGNIFICANT
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError, first_line
from stages.runtime.section import Section

TABLES, RECORD, FITS, CLAIMS = "tables", "runs.jsonl", "fits.json", "claims.json"
"""In the folder of an experiment's results."""

StoredT = TypeVar("StoredT")


class EntryRun(Section):
    """A run behind an entry."""

    cell: str
    seed: int
    state: str
    value: float | None
    """Of the metric; None where the run has none."""
    experiment: str
    commit: str
    baseline: str = ""
    """The commit from which it was started; empty in tables of earlier versions."""
    params_sha256: str
    message: str


class Entry(Section):
    """One entry: what is printed, the numbers, and the runs."""

    text: str
    """The number; empty where there is none."""
    spread: str
    """Printed after the number; empty for one run, and where all runs are equal."""
    extra: str
    """Printed after the spread."""
    best: bool
    """Significantly better than all that it is compared with."""
    n: int
    """Runs that count."""
    expected: int
    """Runs of the grid."""
    value: float | None
    """The mean, the mean difference or a p value."""
    low: float | None
    """Of the 95 % t interval."""
    high: float | None
    sd: float | None
    data_low: float | None = None
    """Of the runs' own 95 % interval, averaged over seeds; None where the metric has none, and in earlier tables."""
    data_high: float | None = None
    runs: list[EntryRun]


class Column(Section):
    """A column's heading."""

    group: Literal[""] = ""
    label: str
    holds: Literal["numbers", "p values"] = "numbers"

    @property
    def heading(self) -> str:
        """In one line."""
        return self.label


class StoredTable(Section):
    """A table."""

    experiment: str
    size: str
    name: str
    caption: str
    row_headings: list[str]
    columns: list[Column]
    rows: list[list[str]]
    """The levels that each row is for."""
    entries: list[list[Entry]]
    """By row and column."""
    footnotes: list[str]

    def each(self) -> Iterator[tuple[str, str, Entry]]:
        """Row, column and entry."""
        for (levels, column), entry in self.by_place().items():
            yield ", ".join(levels), column.heading, entry

    def by_place(self) -> dict[tuple[tuple[str, ...], Column], Entry]:
        """Each entry by the levels of its row and its column."""
        return {
            (tuple(levels), column): entry
            for levels, entries in zip(self.rows, self.entries, strict=True)
            for column, entry in zip(self.columns, entries, strict=True)
        }


class StoredFit(Section):
    """A power law, y = a x^-b + c."""

    a: float
    b: float
    c: float
    b_interval_95: list[float | None] = Field(min_length=2, max_length=2)
    """Nulls where a cell has one run."""
    runs: int
    """Runs that count."""
    expected: int | None = None
    """Runs of the grid; None in files of earlier versions."""


class StoredClaim(Section):
    """A claim with its answer."""

    says: str
    holds_if: list[dict[str, Any]]
    answer: str
    because: str


def write_table(folder: Path, table: StoredTable) -> None:
    """Keep it."""
    atomic_write(folder / f"{table.name}.json", table.model_dump_json(indent=1) + "\n")


def read_table(path: Path) -> StoredTable:
    """A stored table. Raises UserError where there is none."""
    try:
        return StoredTable.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such table; `parrotflow table NAME` makes them") from None
    except ValidationError as error:
        raise UserError(f"{path}: no table of this version: {first_line(error)}") from None


def read_fits(folder: Path) -> dict[str, StoredFit]:
    """The fits in a folder of results; none where there is no such file. Raises UserError."""
    return _read(folder / FITS, dict[str, StoredFit], {})


def read_claims(folder: Path) -> list[StoredClaim]:
    """The claims in a folder of results; none where there is no such file. Raises UserError."""
    return _read(folder / CLAIMS, list[StoredClaim], [])


def _read(path: Path, what: type[StoredT], without: StoredT) -> StoredT:
    try:
        return TypeAdapter(what).validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return without
    except ValidationError as error:
        raise UserError(
            f"{path}: not of this version: {first_line(error)}; `parrotflow table NAME` makes it anew"
        ) from None


def find_table(name: str, experiments: Path) -> StoredTable:
    """The table of a path, in any form, or of `EXPERIMENT/TABLE` in the folder of all experiments.

    Raises UserError that names those there are.
    """
    path = Path(name)
    if path.name and path.with_suffix(".json").is_file():
        return read_table(path.with_suffix(".json"))
    made = sorted(experiments.glob(f"*/*/{TABLES}/*.json"))
    found = [path for path in made if f"{path.parents[2].name}/{path.stem}" == name]
    if len(found) == 1:
        return read_table(found[0])
    there = ", ".join(map(str, found or made))
    raise UserError(
        f"{name}: {'several tables' if found else 'no such table'}; give one of: {there or 'none is made yet'}"
    )


def find_entry(table: StoredTable, row: str, column: str) -> tuple[str, str, Entry]:
    """The entry of a row and a column, each named by a part of its heading that no other one has. Raises UserError."""
    rows = _named("row", row, [", ".join(levels) for levels in table.rows])
    columns = _named("column", column, [item.heading for item in table.columns])
    return next(found for found in table.each() if found[:2] == (rows, columns))


def _named(what: str, part: str, headings: list[str]) -> str:
    found: list[str] = []
    for names in (str.__eq__, str.startswith, str.__contains__):
        found = found or [heading for heading in headings if names(heading.lower(), part.lower())]
    if len(found) != 1:
        raise UserError(f"{what} `{part}`: {'several' if found else 'none'}; there are {'; '.join(headings)}")
    return found[0]


Verdict = Literal["equal", "within intervals", "equal as printed", "different", "gone", "new"]

SUCCESSES: tuple[Verdict, ...] = ("equal", "within intervals", "equal as printed")
"""Of these a check does not fail."""

Compared = tuple[str, str, Verdict, str]
"""Row, column, verdict and the two values."""


def compare_tables(old: StoredTable, new: StoredTable) -> list[Compared]:
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


def compare_fits(old: Mapping[str, StoredFit], new: Mapping[str, StoredFit]) -> list[Compared]:
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
        if then.model_copy(update={"expected": now.expected}) != now:
            alike = (f"{then.b:.4g}", then.runs) == (f"{now.b:.4g}", now.runs)
            low, high = then.b_interval_95
            verdict = "different" if now.runs < then.runs else _within(now.b, low, high, alike)
        values = f"{then.b:.4g} (n = {then.runs}), now {now.b:.4g} (n = {now.runs})"
        compared.append((name, "exponent", verdict, values))
    return compared


def compare_claims(old: list[StoredClaim], new: list[StoredClaim]) -> list[Compared]:
    """The answer of each claim, which is found by what it says."""
    before, after = ({claim.says: claim for claim in claims} for claims in (old, new))
    compared: list[Compared] = []
    for says in {**before, **after}:
        then, now = before.get(says), after.get(says)
        if then is None or now is None:
            compared.append((says, "answer", "new" if then is None else "gone", ""))
        elif then.holds_if != now.holds_if:
            compared.append((says, "condition", "different", f"{then.holds_if}, now {now.holds_if}"))
        else:
            verdict: Verdict = "equal" if then.answer == now.answer else "different"
            compared.append((says, "answer", verdict, f"{then.answer}, now {now.answer}"))
    return compared
