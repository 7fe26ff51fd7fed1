"""The figures of a benchmark as a Markdown table that says each thing once, for docs/reference/measured.md.

Words that all names of a table have in common are above it. Names like `clean: peak memory` and `clean: time`, of
figures without a peer, become a row or a column each. A column that repeats one value becomes a line.
"""

import re
from collections.abc import Callable, Collection, Sequence

from benchmarks.measurements import Measurement

MOST_SPREAD = 0.20
"""Of a figure that is not called unsure."""

MOST_COLUMNS = 3
"""Peers that get a column each, where they are more than the figures."""

FEWEST_COMMON_WORDS = 4
"""Words of all names that are worth a line of their own."""

LEAST_FILLED = 0.75
"""Share of the cells of a grid that have a figure."""

Rows = list[list[str]]
"""Cells of a table, the headings first."""


def table(figures: list[Measurement], everywhere: Collection[str] = ()) -> list[str]:
    """One result as a Markdown table, below it the machine, runs and versions. What is `everywhere` is not said."""
    rows = grid(figures) or rows_of_peers(figures)
    lines = drawn(rows)
    for machine, measured in by(figures, lambda figure: figure.machine).items():
        lines += ["", foot(machine, measured, everywhere)]
    return lines


def rows_of_peers(figures: list[Measurement]) -> Rows:
    """A row for each figure, a column for each peer; the other way round where peers are more."""
    peers = list(dict.fromkeys(figure.peer_name for figure in figures if figure.peer is not None))
    common, names = without_common([figure.figure for figure in figures])
    rows = [[common or "figure", "ours", *peers]]
    for name, measured in by(figures, lambda figure: figure.figure).items():
        of_peers = {figure.peer_name: peer_and_ratio(figure) for figure in measured}
        rows.append([names[name], ours(measured[0]), *(of_peers.get(peer, "") for peer in peers)])
    if len(peers) > max(len(rows) - 1, MOST_COLUMNS):
        return [list(column) for column in zip(*rows, strict=True)]
    return rows


def without_common(names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The words that all names begin and end with, around a `…`, and each name without them; "" where they are few."""
    words = {name: name.split() for name in names}
    shortest = min(map(len, words.values()))
    if len(words) == 1:
        return "", {name: name for name in names}

    def shared(order: Callable[[list[str]], list[str]]) -> int:
        columns = zip(*(order(parts) for parts in words.values()), strict=False)
        return next((number for number, column in enumerate(columns) if len({*column}) > 1), shortest)

    first = shared(lambda parts: parts)
    last = min(shared(lambda parts: parts[::-1]), shortest - first - 1)
    if first + last < FEWEST_COMMON_WORDS:
        return "", {name: name for name in names}
    some = next(iter(words.values()))
    common = " ".join([*some[:first], "…", *some[len(some) - last :]])
    return common, {name: " ".join(parts[first : len(parts) - last]).rstrip(":,") for name, parts in words.items()}


def grid(figures: list[Measurement]) -> Rows | None:
    """Figures without a peer whose names have two parts: what there are more of are rows, the others columns."""
    parts = [figure.figure.partition(": ") for figure in figures]
    if any(figure.peer is not None for figure in figures) or not all(second for *_, second in parts):
        return None
    cells = {(first, second): figure for (first, _, second), figure in zip(parts, figures, strict=True)}
    firsts, seconds = (list(dict.fromkeys(side)) for side in zip(*cells, strict=True))
    if min(len(firsts), len(seconds)) < 2 or len(figures) < LEAST_FILLED * len(firsts) * len(seconds):
        return None
    turned = len(firsts) < len(seconds)
    rows, columns = (seconds, firsts) if turned else (firsts, seconds)
    at = {(key[1], key[0]) if turned else key: figure for key, figure in cells.items()}
    made = [["", *columns]]
    for row in rows:
        of_row = [at.get((row, column)) for column in columns]
        units = {figure.unit for figure in of_row if figure}
        unit = units.pop() if len(units) == 1 else ""
        label = f"{row} ({unit})" if unit else row
        made.append([label, *("" if figure is None else ours(figure, with_unit=not unit) for figure in of_row)])
    return made


def drawn(rows: Rows) -> list[str]:
    """The lines of a table. Of several columns one that repeats a value is a line above it."""
    headings, *others = rows
    repeated = [
        column for column in range(1, len(headings)) if len(others) > 2 and len({row[column] for row in others}) == 1
    ]
    lines = [f"Of each: {', '.join(f'{headings[column]} {others[0][column]}' for column in repeated)}.", ""]
    if not repeated or len(repeated) == len(headings) - 1:
        repeated, lines = [], []
    kept = [[cell for column, cell in enumerate(row) if column not in repeated] for row in rows]
    lines += [f"| {' | '.join(kept[0])} |", "|---" + "|--:" * (len(kept[0]) - 1) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in kept[1:]]


def ours(figure: Measurement, *, with_unit: bool = True) -> str:
    """Our value, and that it is unsure."""
    unsure = f" (unsure: {figure.spread:.0%})" if figure.spread > MOST_SPREAD else ""
    return f"{in_digits(figure.ours)} {figure.unit if with_unit else ''}".rstrip() + unsure


def peer_and_ratio(figure: Measurement) -> str:
    """The peer's value and the ratio, in the row of ours."""
    if figure.peer is None or figure.ratio is None:
        return ""
    interval = "; {:.2f} to {:.2f}".format(*figure.ratio_interval) if figure.ratio_interval else ""
    return f"{in_digits(figure.peer)} ({figure.ratio:.2f}{interval})"


def foot(machine: str, figures: list[Measurement], everywhere: Collection[str]) -> str:
    """A line on the figures of one machine: which it is, how many runs, the versions, and the commit of the code."""
    where = ", ".join(part for part in machine.split(", ") if part not in everywhere) or "the same machine"
    runs = [figure.runs for figure in figures]
    of_runs = f"{' to '.join(map(str, dict.fromkeys((min(runs), max(runs)))))} runs"
    versions = dict.fromkeys(f"{name} {number}" for figure in figures for name, number in figure.versions.items())
    of_libraries = ", ".join(version for version in versions if version not in everywhere)
    commits = dict.fromkeys(figure.commit for figure in figures if figure.commit)
    of_commits = f"commit {', '.join(commits)}" if commits else ""
    parts = [plain(where), of_runs if max(runs) > 1 else "", of_libraries, of_commits]
    return f"On {'; '.join(filter(None, parts))}."


def plain(machine: str) -> str:
    """A processor's name without marks and the word that all have: `Intel Xeon`."""
    return re.sub(r"\((R|TM)\)| Processor\b", "", machine)


def by(figures: list[Measurement], key: Callable[[Measurement], str]) -> dict[str, list[Measurement]]:
    """The figures in groups of one key, both in their order."""
    groups: dict[str, list[Measurement]] = {}
    for figure in figures:
        groups.setdefault(key(figure), []).append(figure)
    return groups


def in_digits(value: float) -> str:
    """Four significant digits, thousands with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
