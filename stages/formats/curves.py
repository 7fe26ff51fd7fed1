"""Curves: tables that stages write while they work (TSV as DVCLive writes them, or CSV), and the picture of them.

The first column of a table is the horizontal axis; each other column is a curve. FILE:COLUMN names a curve, FILE:* all
of them.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from stages.runtime.errors import STATE_DIR

Points: TypeAlias = list[tuple[float, float]]
"""(step, value)."""

EVERY_COLUMN = "*"

PANEL_INCHES, DOTS_PER_INCH = (4.5, 3.4), 110

MAX_MARKED = 20
"""A curve of more points has no markers."""


SPARKS, SPARKS_WIDTH = "▁▂▃▄▅▆▇█", 24


class Panel(NamedTuple):
    """One panel of a picture."""

    title: str
    unit: str
    """The label of the vertical axis."""
    curves: Mapping[str, Points]
    """By label; each has points."""


def curves_in(text: str, file: str) -> dict[str, Points]:
    """Column -> its points, in the text of a table. Rows without both numbers are skipped."""
    found: dict[str, Points] = {}
    with suppress(csv.Error):
        rows = csv.reader(io.StringIO(text), delimiter="\t" if file.endswith(".tsv") else ",")
        _, *columns = next(rows, [""])
        for row in rows:
            for column, value in zip(columns, row[1:], strict=False):
                with suppress(ValueError):
                    found.setdefault(column, []).append((float(row[0]), float(value)))
    return {column: points for column, points in found.items() if points}


def read_curves(file: Path) -> dict[str, Points]:
    """Column -> its points; empty if there is no such table."""
    return curves_in(file.read_text(encoding="utf-8"), file.name) if file.is_file() else {}


_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
INK: dict[Any, Any] = dict.fromkeys(_INKED, "#808080")
"""Lines and texts that can be read on light and on dark pages."""


def sparkline(points: Points) -> str:
    """The shape of a curve in one line of text; empty below three points."""
    values = [value for _, value in points if math.isfinite(value)]
    if len(values) < 3:
        return ""
    step = max(1, -(-len(values) // SPARKS_WIDTH))
    low, high = min(values), max(values)
    return "".join(SPARKS[int((value - low) / (high - low or 1) * (len(SPARKS) - 1))] for value in values[::step])


def live_curves(since: float) -> Path | None:
    """The folder of the curves to which a training has added a point since then (seconds since 1970); None if none."""
    ages = {path.parent: path.stat().st_mtime for path in (STATE_DIR / "checkpoints").glob("*/curves/*.tsv")}
    newest = max(ages, key=lambda folder: ages[folder], default=None)
    return newest if newest and ages[newest] >= since else None


def draw_curves(panels: Sequence[Panel], *, as_svg: bool = False) -> bytes:
    """Draw panels side by side as PNG; the same curves give the same bytes on every machine.

    `as_svg` is for pages of HTML: without a background, with texts in the page's font.
    """
    # Half a second of imports: only if there is something to draw.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture, (width, height) = io.BytesIO(), PANEL_INCHES
    with mpl.rc_context():
        mpl.rcdefaults()  # not this machine's matplotlibrc; the font comes with matplotlib
        if as_svg:
            mpl.rcParams.update(INK | {"svg.fonttype": "none", "svg.hashsalt": "curves", "font.family": "sans-serif"})
        figure = Figure(figsize=(width * len(panels), height), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for label, points in panel.curves.items():
                marker = "" if len(points) > MAX_MARKED else "o"
                axes.plot(*zip(*points, strict=True), label=label, marker=marker, markersize=4)
            axes.set(title=panel.title, xlabel="step", ylabel=panel.unit)
            axes.locator_params("x", integer=True, nbins=5)
            if len(panel.curves) > 1:
                axes.legend(frameon=False)
            axes.spines[["top", "right"]].set_visible(False)
        # Without the version of matplotlib, which the file would name, and the date.
        kind, named = ("svg", ("Creator", "Date")) if as_svg else ("png", ("Software",))
        figure.savefig(picture, format=kind, dpi=DOTS_PER_INCH, transparent=as_svg, metadata=dict.fromkeys(named))
    return picture.getvalue()
