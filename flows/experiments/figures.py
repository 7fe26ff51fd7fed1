"""Figures for print: one column wide, fonts embedded, told apart without colour, the same bytes for the same data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

from flows.experiments.rows import Row, Tidy, lacking
from flows.experiments.statistics import PowerLaw, estimate
from stages.runtime.atomic import atomic_write

if TYPE_CHECKING:
    from flows.experiments.experiment import CurvesFigure, Experiment, Figure, LevelsFigure, PointsFigure

COLUMN_INCHES = 3.25
"""A column of the usual two-column layouts."""
HEIGHT_INCHES = 0.72 * COLUMN_INCHES
LEVEL_INCHES = 0.17
"""The height of a level's line."""

STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,  # TrueType, embedded; many venues refuse the default, Type 3
    "svg.hashsalt": "parrotflow",  # else ids are random
    "savefig.dpi": 300,
}

LOOKS = (
    ("#000000", "-", "o"),
    ("#0072b2", "--", "s"),
    ("#d55e00", "-.", "^"),
    ("#56b4e9", ":", "D"),
    ("#cc79a7", (0, (5, 1, 1, 1, 1, 1)), "v"),
    ("#bbbbbb", (0, (8, 2)), "P"),
)
"""Colour (Okabe and Ito's, which colour-blind readers can tell apart, dark to light), line and marker of each level."""

MEAN, RUN = "mean over seeds, 95 % interval", "a run"

METADATA: Mapping[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
"""No time and no version in the files."""


def write_figure(
    folder: Path, experiment: "Experiment", name: str, data: Tidy, fits: Mapping[str, PowerLaw]
) -> list[Path]:
    """Draw a figure of the file as PDF, SVG and PNG; none where no run has what it shows."""
    figure = experiment.figures[name]
    rows = [row for row in data.rows if row.state == "finished"]
    settings: Any = {**mpl.rcParamsDefault, **STYLE}  # not those of a user's matplotlibrc
    with mpl.rc_context(settings):
        canvas = Canvas(figsize=(COLUMN_INCHES, HEIGHT_INCHES), layout="constrained")
        axes = canvas.subplots()
        # Each level with its runs of the grid, so that a label can say how many are missing.
        levels = Counter(_drawn_as(figure, row) for row in data.rows)
        if figure.kind == "curves":
            drawn = _draw_curves(axes, experiment, figure, rows, levels)
        elif figure.kind == "points":
            drawn = _draw_points(axes, experiment, figure, rows, levels, _fitted(figure.fit, data, fits))
        else:
            drawn = _draw_levels(axes, experiment, figure, rows, levels)
            canvas.set_figheight(max(HEIGHT_INCHES, LEVEL_INCHES * (len(levels) + 3)))
        paths = {form: folder / f"{name}.{form}" for form in METADATA}
        if not drawn:
            for path in paths.values():
                path.unlink(missing_ok=True)  # of runs that are no longer there
            return []
        for axis in figure.log:
            getattr(axes, f"set_{axis}scale")("log")
            _plain_ticks(getattr(axes, f"{axis}axis"))
        _legend_above(canvas, axes)
        return [_save(canvas, path, form) for form, path in paths.items()]


def _drawn_as(figure: "Figure", row: Row) -> str:
    """The level whose marker a point has; in other figures all levels of the cell, whose seeds are one line."""
    return row.levels[figure.by] if figure.kind == "points" else ", ".join(row.levels.values())


def _fitted(name: str | None, data: Tidy, fits: Mapping[str, PowerLaw]) -> tuple[PowerLaw, str] | None:
    """A fit, and what its label says of missing runs."""
    if name is None or name not in fits:
        return None
    return fits[name], lacking(fits[name].n, len(data.rows))


def _legend_above(canvas: Canvas, axes: Any) -> None:
    """A legend over the axes, where it hides no data, in as many columns as fit; the figure grows by its height."""
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


def _save(canvas: Canvas, path: Path, form: str) -> Path:
    content = BytesIO()
    canvas.savefig(content, format=form, metadata=METADATA[form])
    atomic_write(path, content.getvalue())
    return path


def _plain_ticks(axis: Any) -> None:
    """1, 2, 5, 10 instead of 10^0: a figure often spans less than a decade."""
    axis.set_major_locator(mpl.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(mpl.ticker.NullFormatter())


def _label(text: str) -> str:
    """A text as matplotlib prints it: `$` would begin a formula, and a name that begins with `_` would be hidden."""
    return text.replace("$", r"\$").replace("_", " _", text.startswith("_"))


def _draw_curves(
    axes: Any,
    experiment: "Experiment",
    figure: "CurvesFigure",
    rows: Sequence[Row],
    levels: Mapping[str, int],
) -> bool:
    """The mean over seeds, and a band from the lowest to the highest one."""
    curve = experiment.curves[figure.curve]
    drawn = False
    for level, (colour, line, _) in zip(levels, cycle(LOOKS), strict=False):
        own = [row for row in rows if _drawn_as(figure, row) == level and figure.curve in row.curves]
        if not own:
            axes.plot([], [], color=colour, linestyle=line, label=f"{_label(level)} (none of {levels[level]} seeds)")
            continue
        shared = set.intersection(*({x for x, _ in row.curves[figure.curve]} for row in own))
        steps = sorted(shared)
        values = np.array([[dict(row.curves[figure.curve])[step] for step in steps] for row in own])
        of_all = f" of {levels[level]}" if len(own) < levels[level] else ""
        seeds = f" ({len(own)}{of_all} seeds)" if len(own) > 1 or of_all else " (1 seed)"
        axes.plot(steps, values.mean(axis=0), color=colour, linestyle=line, label=_label(level) + seeds)
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0)
        drawn = True
    axes.set(xlabel=_label(curve.x_label), ylabel=_label(curve.heading))
    return drawn


def _draw_levels(
    axes: Any,
    experiment: "Experiment",
    figure: "LevelsFigure",
    rows: Sequence[Row],
    levels: Mapping[str, int],
) -> bool:
    """A line of text for each level, its runs beside it."""
    shown = {level: [r for r in rows if _drawn_as(figure, r) == level and figure.x in r.metrics] for level in levels}
    for place, own in enumerate(shown.values()):
        axes.axhline(place, color="#dddddd", linewidth=0.5, zorder=0)
        if not own:
            continue
        values = [row.metrics[figure.x] for row in own]
        mean = estimate(values)
        if mean.low is not None and mean.high is not None:
            half = [[mean.mean - mean.low], [mean.high - mean.mean]]
            axes.errorbar(
                [mean.mean], [place], xerr=half, color="#d55e00", fmt="|", capsize=2, markersize=7, label=MEAN
            )
        axes.plot(values, [place] * len(values), "o", color="#000000", markerfacecolor="none", label=RUN)
    counts = {level: lacking(len(own), levels[level]) for level, own in shown.items()}
    axes.set_yticks(range(len(shown)), [_label(level) + (count and f" ({count})") for level, count in counts.items()])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(1, len(shown)) - 0.5, -0.5)
    axes.set(xlabel=_label(experiment.metrics[figure.x].heading))
    return any(shown.values())


def _draw_points(
    axes: Any,
    experiment: "Experiment",
    figure: "PointsFigure",
    rows: Sequence[Row],
    levels: Mapping[str, int],
    fitted: tuple[PowerLaw, str] | None,
) -> bool:
    """A marker for each run, and the fit with its band, if it has one."""
    known = [row for row in rows if figure.x in row.metrics and figure.y in row.metrics]
    for level, (colour, _, marker) in zip(levels, cycle(LOOKS), strict=False):
        own = [row for row in known if _drawn_as(figure, row) == level]
        xs, ys = ([row.metrics[name] for row in own] for name in (figure.x, figure.y))
        count = lacking(len(own), levels[level])
        label = _label(level) + (count and f" ({count})")
        axes.plot(xs, ys, marker, color=colour, markerfacecolor="none", label=label)
    ends = [row.metrics[figure.x] for row in known if row.metrics[figure.x] > 0]  # a power law has no others
    if ends and fitted is not None:
        law, count = fitted
        x = np.geomspace(min(ends), max(ends), 100)
        offset = f" + {law.c:.3g}" if law.c else ""
        label = f"{law.a:.3g} x$^{{-{law.b:.3g}}}${offset}"
        band = law.band(x)
        if band is not None:
            label += ", 95 % interval"
            axes.fill_between(x, *band, color="#444444", alpha=0.2, linewidth=0)
        label += count and f", {count}"
        axes.plot(x, law.curve(x), color="#444444", linewidth=0.8, label=label)
    x_label, y_label = (_label(experiment.metrics[name].heading) for name in (figure.x, figure.y))
    axes.set(xlabel=x_label, ylabel=y_label)
    return bool(known)
