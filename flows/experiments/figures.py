"""Figures for print: one column wide, fonts embedded, told apart without colour, the same bytes for the same data."""

from collections.abc import Mapping, Sized
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

from flows.experiments.rows import LEVELS, Tidy, lacking
from flows.experiments.statistics import PowerLaw, estimate
from stages.runtime.atomic import atomic_write

if TYPE_CHECKING:
    from flows.experiments.experiment import CurvesFigure, LevelsFigure, PointsFigure

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
    ("#f0e442", (0, (1, 3)), "X"),
)
"""Colour (Okabe and Ito's, which colour-blind readers can tell apart, dark to light), line and marker of each level."""

MEAN, RUN = "mean over seeds, 95 % interval", "a run"

METADATA: Mapping[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
"""No time and no version in the files."""


def write_figure(folder: Path, data: Tidy, name: str, fits: Mapping[str, PowerLaw]) -> list[Path]:
    """Draw a figure of the file as PDF, SVG and PNG; none where no run has what it shows."""
    figure = data.experiment.figures[name]
    settings: Any = {**mpl.rcParamsDefault, **STYLE}  # not those of a user's matplotlibrc
    with mpl.rc_context(settings):
        canvas = Canvas(figsize=(COLUMN_INCHES, HEIGHT_INCHES), layout="constrained")
        axes = canvas.subplots()
        if figure.kind == "curves":
            drawn = _draw_curves(axes, data, figure)
        elif figure.kind == "points":
            drawn = _draw_points(axes, data, figure, fits.get(figure.fit or ""))
        else:
            drawn = _draw_levels(axes, data, figure)
            canvas.set_figheight(max(HEIGHT_INCHES, LEVEL_INCHES * (data.frame[LEVELS].nunique() + 3)))
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


def _label(text: Any) -> str:
    """A text as matplotlib prints it: `$` would begin a formula, and a name that begins with `_` would be hidden."""
    return str(text).replace("$", r"\$").replace("_", " _", str(text).startswith("_"))


def _draw_curves(axes: Any, data: Tidy, figure: "CurvesFigure") -> bool:
    """The mean over seeds, and a band from the lowest to the highest one."""
    curve = data.experiment.curves[figure.curve]
    drawn = False
    for (level, rows), (colour, line, _) in zip(data.frame.groupby(LEVELS, sort=False), cycle(LOOKS), strict=False):
        own = [
            dict(found[figure.curve]) for cell in rows["cell"] if figure.curve in (found := data.curves.get(cell, {}))
        ]
        if not own:
            axes.plot([], [], color=colour, linestyle=line, label=f"{_label(level)} (none of {len(rows)} seeds)")
            continue
        steps = sorted(set.intersection(*map(set, own)))
        values = np.array([[points[step] for step in steps] for points in own])
        of_all = f" of {len(rows)}" if len(own) < len(rows) else ""
        seeds = f" ({len(own)}{of_all} seeds)" if len(own) > 1 or of_all else " (1 seed)"
        axes.plot(steps, values.mean(axis=0), color=colour, linestyle=line, label=_label(level) + seeds)
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0)
        drawn = True
    axes.set(xlabel=_label(curve.x_label), ylabel=_label(curve.heading))
    return drawn


def _draw_levels(axes: Any, data: Tidy, figure: "LevelsFigure") -> bool:
    """A line of text for each level, its runs beside it."""
    names = []
    for place, (level, rows) in enumerate(data.frame.groupby(LEVELS, sort=False)):
        axes.axhline(place, color="#dddddd", linewidth=0.5, zorder=0)
        values = rows[figure.x].dropna().tolist()
        names.append(_counted(level, values, rows))
        if not values:
            continue
        mean = estimate(values)
        if mean.low is not None and mean.high is not None:
            half = [[mean.mean - mean.low], [mean.high - mean.mean]]
            axes.errorbar(
                [mean.mean], [place], xerr=half, color="#d55e00", fmt="|", capsize=2, markersize=7, label=MEAN
            )
        axes.plot(values, [place] * len(values), "o", color="#000000", markerfacecolor="none", label=RUN)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(1, len(names)) - 0.5, -0.5)
    axes.set(xlabel=_heading(data, figure.x))
    return bool(data.frame[figure.x].notna().any())


def _draw_points(axes: Any, data: Tidy, figure: "PointsFigure", law: PowerLaw | None) -> bool:
    """A marker for each run, the lines that they are to be below, and the fit with its band, if it has one."""
    by_level = data.frame.groupby(figure.by, observed=True)
    for (level, rows), (colour, _, marker) in zip(by_level, cycle(LOOKS), strict=False):
        own = rows.dropna(subset=[figure.x, figure.y])
        label = _counted(level, own, rows)
        axes.plot(own[figure.x], own[figure.y], marker, color=colour, markerfacecolor="none", label=label)
    for name, (_, line, _) in zip(figure.lines, cycle(LOOKS[1:]), strict=False):
        for value in data.frame[name].dropna().unique():  # one, unless the held-out data differ
            axes.axhline(value, color="#777777", linestyle=line, linewidth=0.8, zorder=0, label=_heading(data, name))
    known = data.frame.dropna(subset=[figure.x, figure.y])
    ends = known[figure.x][known[figure.x] > 0]  # a power law has no others
    if len(ends) and law is not None:
        x = np.geomspace(ends.min(), ends.max(), 100)
        offset = f" + {law.c:.3g}" if law.c else ""
        label = f"{law.a:.3g} x$^{{-{law.b:.3g}}}${offset}"
        band = law.band(x)
        if band is not None:
            label += ", 95 % interval"
            axes.fill_between(x, *band, color="#444444", alpha=0.2, linewidth=0)
        count = lacking(law.n, len(data.frame))
        label += count and f", {count}"
        axes.plot(x, law.curve(x), color="#444444", linewidth=0.8, label=label)
    axes.set(xlabel=_heading(data, figure.x), ylabel=_heading(data, figure.y))
    return bool(len(known))


def _heading(data: Tidy, metric: str) -> str:
    return _label(data.experiment.metrics[metric].heading)


def _counted(level: Any, own: Sized, rows: Sized) -> str:
    """A level, and how many of its runs are shown if some are not."""
    count = lacking(len(own), len(rows))
    return _label(level) + (count and f" ({count})")
