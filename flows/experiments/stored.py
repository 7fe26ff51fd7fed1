"""A table as it is stored, `experiments/NAME/SIZE/tables/TABLE.json`.

Every form is rendered from it, every entry leads to its runs, and a later table is compared with it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from flows.experiments.experiment import EXPERIMENTS
from flows.experiments.statistics import SIGNIFICANT
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError, first_line
from stages.runtime.section import Section

TABLES, RECORD = "tables", "runs.jsonl"
"""In the folder of an experiment's results."""


class EntryRun(Section):
    """A run behind an entry."""

    cell: str
    seed: int
    state: str
    value: float | None
    """Of the metric; None where the run has none."""
    experiment: str
    commit: str
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
    runs: list[EntryRun]


class Column(Section):
    """A column's heading."""

    group: str = ""
    """A level that several columns share; empty where none do."""
    label: str
    holds: Literal["numbers", "p values"] = "numbers"

    @property
    def heading(self) -> str:
        """In one line."""
        return f"{self.group}: {self.label}" if self.group else self.label


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
        for levels, entries in zip(self.rows, self.entries, strict=True):
            for column, entry in zip(self.columns, entries, strict=True):
                yield ", ".join(levels), column.heading, entry


def results_folder(name: str, size: str) -> Path:
    """Where the results of an experiment are stored."""
    return EXPERIMENTS / Path(name).stem / size


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


def find_table(name: str) -> StoredTable:
    """The table of a path, in any form, or of `EXPERIMENT/TABLE`. Raises UserError that names those there are."""
    path = Path(name)
    if path.name and path.with_suffix(".json").is_file():
        return read_table(path.with_suffix(".json"))
    made = sorted(EXPERIMENTS.glob(f"*/*/{TABLES}/*.json"))
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


Verdict = Literal["equal", "within intervals", "different", "gone", "new"]


def compare_tables(old: StoredTable, new: StoredTable) -> list[tuple[str, str, Verdict, str]]:
    """Row, column, verdict and the two values of each entry.

    Equal: the same number from as many runs. Within intervals: the new number is in the old one's 95 % interval; a p
    value is on the same side of 0.05.
    """
    tests = {column.heading for column in new.columns if column.holds == "p values"}
    before = {(row, column): entry for row, column, entry in old.each()}
    after = {(row, column): entry for row, column, entry in new.each()}
    compared: list[tuple[str, str, Verdict, str]] = []
    for place in {**before, **after}:
        then, now = before.get(place), after.get(place)
        if then is None or now is None:
            compared.append((*place, "new" if then is None else "gone", ""))
            continue
        values = f"{then.text or 'none'} (n = {then.n}), now {now.text or 'none'} (n = {now.n})"
        compared.append((*place, _verdict(then, now, place[1] in tests), values))
    return compared


def _verdict(then: Entry, now: Entry, is_test: bool) -> Verdict:
    if (then.value, then.sd, then.n) == (now.value, now.sd, now.n):
        return "equal"
    if is_test and then.value is not None and now.value is not None:
        return "within intervals" if (then.value < SIGNIFICANT) == (now.value < SIGNIFICANT) else "different"
    if now.value is None or then.low is None or then.high is None:
        return "different"
    return "within intervals" if then.low <= now.value <= then.high else "different"
