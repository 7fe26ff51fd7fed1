"""Writes tables as LaTeX (booktabs) and Markdown, and figures as PDF and SVG.

Figures are for print: one column wide, with embedded fonts, readable without color, and reproducible byte for byte.
"""

import re
from collections.abc import Iterator, Mapping, Sized
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from flows.experiments.runs import LEVELS, Tidy, lacking
from flows.experiments.statistics import PowerLaw
from stages.formats.pages import Markdown, markdown_table
from stages.formats.pages import escape as escape_markdown
from stages.runtime.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from flows.experiments.experiment import CurvesFigure, PointsFigure
    from flows.experiments.tables import Entry, Table


LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "±": "$\\pm$",
    "\u2212": "$-$",
    "—": "---",
    "µ": "$\\mu$",
    "Δ": "$\\Delta$",
    "\u00d7": "$\\times$",
    "·": "$\\cdot$",
    "≤": "$\\leq$",
    "≥": "$\\geq$",
    "≈": "$\\approx$",
}
"""Escapes for pdfLaTeX. Other alphabets, such as Greek, need XeLaTeX or LuaLaTeX."""


def write_forms(folder: Path, table: "Table") -> list[Path]:
    """Write a table in all formats. Returns the files."""
    texts = {folder / f"{table.name}.tex": tex(table), folder / f"{table.name}.md": markdown(table)}
    for path, text in texts.items():
        atomic_write(path, text)
    return list(texts)


def printed(entry: "Entry") -> str:
    """Format an entry: `1.51 ± 0.02 (2/3)`."""
    count = f"({entry.n}/{entry.expected})" if entry.n < entry.expected else ""
    return f"{entry.text or '—'} {count}".rstrip()


def markdown(table: "Table") -> str:
    """A Markdown table with its caption above and its footnotes below."""
    rows = [
        (*levels, *(Markdown(printed(entry).replace("|", "\\|")) for entry in entries))
        for levels, entries in zip(table.rows, table.entries, strict=True)
    ]
    body = markdown_table((*table.row_headings, *table.columns), rows, left=len(table.row_headings))
    notes = "".join(f"\n{escape_markdown(note)}\n" for note in table.footnotes)
    return f"{escape_markdown(table.caption)}\n\n{body}{notes}"


def tex(table: "Table") -> str:
    """A LaTeX table; the document needs \\usepackage{booktabs}."""
    names, label = len(table.row_headings), f"{table.experiment}-{table.name}".replace("_", "-")
    lines = [
        "\\begin{table}[t]",
        "  \\centering",
        f"  \\caption{{{escape_tex(table.caption)}}}",
        f"  \\label{{tab:{label}}}",
        f"  \\begin{{tabular}}{{{'l' * names}{'r' * len(table.columns)}}}",
        "    \\toprule",
    ]
    titles = [*table.row_headings, *table.columns]
    lines += [f"    {' & '.join(map(escape_tex, titles))} \\\\", "    \\midrule"]
    for levels, entries in zip(table.rows, table.entries, strict=True):
        line = " & ".join([*map(escape_tex, levels), *map(_tex_entry, entries)])
        first = "{}" if line.startswith(("[", "*")) else ""  # or LaTeX reads it as an argument of the line break
        lines.append(f"    {first}{line} \\\\")
    notes = [f"    {escape_tex(note)}" for note in table.footnotes]
    lines += ["    \\bottomrule", "  \\end{tabular}", "  \\par\\smallskip"]
    lines += ["  \\begin{minipage}{0.95\\linewidth}\\footnotesize", *notes, "  \\end{minipage}"]
    return "\n".join([*lines, "\\end{table}", ""])


def _tex_entry(entry: "Entry") -> str:
    return re.sub(r"(?<=[\[ ])-(?=\d)|(?<=\()-(?=\d)|^-(?=\d)", "$-$", escape_tex(printed(entry)))


def escape_tex(text: str) -> str:
    """The text in one paragraph, with LaTeX's special characters escaped."""
    return "".join(LATEX.get(character, character) for character in re.sub(r"\s+", " ", text))


COLUMN_INCHES = 3.25
"""The column width of common two-column layouts."""

STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same on every machine
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,  # TrueType, embedded; many venues refuse the default, Type 3
    "svg.hashsalt": "parrotflow",  # ids are random by default
    "savefig.dpi": 300,
}

LINE_STYLES = (
    ("#000000", "-", "o"),
    ("#0072b2", "--", "s"),
    ("#d55e00", "-.", "^"),
    ("#56b4e9", ":", "D"),
    ("#cc79a7", (0, (5, 1, 1, 1, 1, 1)), "v"),
    ("#bbbbbb", (0, (8, 2)), "P"),
    ("#f0e442", (0, (1, 3)), "X"),
)
"""Color (Okabe and Ito's palette for color-blind readers, from dark to light), line and marker of each level."""


def _looks() -> "Iterator[tuple[str, Any, str]]":
    """Yield color, line and marker for each level. Colors repeat with different lines and markers."""
    for number, (color, *_) in enumerate(cycle(LINE_STYLES)):
        _, line, marker = LINE_STYLES[(number + number // len(LINE_STYLES)) % len(LINE_STYLES)]
        yield color, line, marker


FIGURE_METADATA: Mapping[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
}
"""Omits times and versions from the files."""


def write_figure(folder: Path, data: Tidy, name: str, fits: Mapping[str, PowerLaw]) -> list[Path]:
    """Draw a figure as PDF and SVG. Returns the files, none if no run has its data."""
    import matplotlib as mpl  # slow
    from matplotlib.figure import Figure

    figure = data.experiment.figures[name]
    settings: Any = {**mpl.rcParamsDefault, **STYLE}  # ignores a user's matplotlibrc
    with mpl.rc_context(settings):
        canvas = Figure(figsize=(COLUMN_INCHES, 0.72 * COLUMN_INCHES), layout="constrained")
        axes = canvas.subplots()
        if figure.kind == "curves":
            drawn = _draw_curves(axes, data, figure)
        else:
            metrics = (figure.x, figure.y)
            laws = (fits.get(name) for name, fit in data.experiment.fits.items() if (fit.x, fit.y) == metrics)
            drawn = _draw_points(axes, data, figure, next(laws, None))
        paths = {form: folder / f"{name}.{form}" for form in FIGURE_METADATA}
        if not drawn:
            return []
        for axis in figure.log:
            getattr(axes, f"set_{axis}scale")("log")
            _plain_ticks(getattr(axes, f"{axis}axis"))
        _legend_above(canvas, axes)
        return [_save(canvas, path, form) for form, path in paths.items()]


def _legend_above(canvas: "Canvas", axes: Any) -> None:
    """Add a legend above the axes, in as many columns as fit, and increase the figure's height by the legend's."""
    by_label = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    labels, handles = list(by_label), list(by_label.values())
    for columns in (3, 2, 1):
        legend = canvas.legend(handles, labels, loc="outside upper center", ncols=columns)
        canvas.draw_without_rendering()
        extent = legend.get_window_extent()
        if extent.width <= canvas.bbox.width or columns == 1:
            canvas.set_figheight(canvas.get_figheight() + extent.height / canvas.dpi)
            return
        legend.remove()


def _save(canvas: "Canvas", path: Path, form: str) -> Path:
    content = BytesIO()
    canvas.savefig(content, format=form, metadata=FIGURE_METADATA[form])
    atomic_write(path, content.getvalue())
    return path


def _plain_ticks(axis: Any) -> None:
    """Label ticks 1, 2, 5, 10 instead of 10^0, because figures often span less than a decade."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def _label(text: Any) -> str:
    """Escape a text for matplotlib, where `$` begins a formula and labels that begin with `_` are hidden."""
    return str(text).replace("$", r"\$").replace("_", " _", str(text).startswith("_"))


def _draw_curves(axes: Any, data: Tidy, figure: "CurvesFigure") -> bool:
    """Draw the mean over seeds, and a band from the lowest to the highest. Returns False if there are no curves."""
    curve = data.experiment.curves[figure.curve]
    drawn = False
    by_level = data.frame.groupby(LEVELS, sort=False)
    for (level, rows), (color, line, marker) in zip(by_level, _looks(), strict=False):
        of_cells = (data.curves.get(cell, {}) for cell in rows["cell"])
        runs = [dict(curves[figure.curve]) for curves in of_cells if figure.curve in curves]
        if not runs:
            axes.plot([], [], color=color, linestyle=line, label=f"{_label(level)} (none of {len(rows)} seeds)")
            continue
        steps = sorted(set.intersection(*map(set, runs)))
        values = np.array([[points[step] for step in steps] for points in runs])
        of_all = f" of {len(rows)}" if len(runs) < len(rows) else ""
        seeds = f" ({len(runs)}{of_all} seeds)" if len(runs) > 1 or of_all else " (1 seed)"
        look = {"color": color, "linestyle": line, "marker": marker if len(steps) == 1 else ""}  # a line needs two
        axes.plot(steps, values.mean(axis=0), **look, label=_label(level) + seeds)
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=color, alpha=0.2, linewidth=0)
        drawn = True
    axes.set(xlabel="step", ylabel=_label(curve.heading))
    return drawn


def _draw_points(axes: Any, data: Tidy, figure: "PointsFigure", law: PowerLaw | None) -> bool:
    """Draw a marker for each run, the lines to beat, and the fit with its band. Returns False if there are no runs."""
    series = data.frame[figure.by].astype(str)
    if figure.joined:
        series = series.mask(series.str.startswith(figure.joined), figure.joined)
    for (level, rows), (color, _, marker) in zip(data.frame.groupby(series, sort=False), _looks(), strict=False):
        shown = _shown(rows, figure).sort_values(figure.x)
        look = {"color": color, "markerfacecolor": "none", "linestyle": "-" if level == figure.joined else ""}
        axes.plot(shown[figure.x], shown[figure.y], marker=marker, **look, label=_counted(level, shown, rows))
    for name, (_, line, _) in zip(figure.lines, cycle(LINE_STYLES[1:]), strict=False):
        for value in data.frame[name].dropna().unique():  # several only if the held-out data differ
            axes.axhline(value, color="#777777", linestyle=line, linewidth=0.8, zorder=0, label=_heading(data, name))
    known = _shown(data.frame, figure)
    ends = known[figure.x][known[figure.x] > 0]  # a power law needs positive x
    if len(ends) and law is not None:
        x = np.geomspace(ends.min(), ends.max(), 100)
        label = f"{law.a:.3g} x$^{{{-law.b:.3g}}}$, 95 % interval"
        axes.fill_between(x, *law.band(x), color="#444444", alpha=0.2, linewidth=0)
        count = lacking(law.n, len(data.frame))
        label += count and f", {count}"
        axes.plot(x, law.curve(x), color="#444444", linewidth=0.8, label=label)
    axes.set(xlabel=_heading(data, figure.x), ylabel=_heading(data, figure.y))
    return bool(len(known))


def _shown(rows: pd.DataFrame, figure: "PointsFigure") -> pd.DataFrame:
    """The runs with both metrics, which must be positive on logarithmic axes."""
    kept = rows.dropna(subset=[figure.x, figure.y])
    for axis in figure.log:
        kept = kept[kept[getattr(figure, axis)] > 0]
    return kept


def _heading(data: Tidy, metric: str) -> str:
    return _label(data.experiment.metrics[metric].heading)


def _counted(level: Any, shown: Sized, rows: Sized) -> str:
    """A level, with the number of its shown runs if some are missing."""
    count = lacking(len(shown), len(rows))
    return _label(level) + (count and f" ({count})")
