"""The figures of a benchmark as a Markdown table, for docs/reference/measured.md."""

from benchmarks.measurements import Measurement
from stages.formats.pages import markdown_table

MOST_SPREAD = 0.20
"""Of a figure that is not called unsure."""


def table(figures: list[Measurement]) -> list[str]:
    """A row for each figure, a column for ours and each peer; below them the machines, the versions and the commits.

    Of names `PART: FIGURE` each part has a column instead.
    """
    parts = all(": " in figure.figure and figure.peer is None for figure in figures)
    cells: dict[str, dict[str, str]] = {}
    for figure in figures:
        column, _, row = figure.figure.partition(": ") if parts else ("ours", "", figure.figure)
        unsure = f" (unsure: {figure.spread:.0%})" if figure.spread > MOST_SPREAD else ""
        of_row = cells.setdefault(row, {})
        of_row[column] = f"{in_digits(figure.ours)} {figure.unit}".rstrip() + unsure
        if figure.peer is not None:
            of_row[figure.peer_name] = f"{in_digits(figure.peer)} ({figure.ratio_text})"
    columns = list(dict.fromkeys(column for of_row in cells.values() for column in of_row))
    rows = [[name, *(of_row.get(column, "") for column in columns)] for name, of_row in cells.items()]
    versions = dict.fromkeys(f"{name} {number}" for figure in figures for name, number in figure.versions.items())
    commits = dict.fromkeys(f"commit {figure.commit}" for figure in figures if figure.commit)
    machines = dict.fromkeys(figure.machine for figure in figures)
    foot = f"On {'; '.join(machines)}. {', '.join([*versions, *commits])}."
    heading, alignment, *lines = markdown_table(["figure", *columns], rows).splitlines()
    return [heading, alignment.replace(" ", ""), *lines, "", foot]


def in_digits(value: float) -> str:
    """Four significant digits, thousands with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
