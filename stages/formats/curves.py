"""Curves: tables that stages write while they work (TSV as DVCLive writes them, or CSV), and the picture of them.

The first column of a table is the horizontal axis; each other column is a curve. FILE:COLUMN names a curve.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

Points: TypeAlias = list[tuple[float, float]]
"""(step, value)."""

PANEL_INCHES, DOTS_PER_INCH = (4.5, 3.4), 110

MAX_MARKED = 20
"""A curve of more points has no markers."""


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
        for row in csv.DictReader(io.StringIO(text), delimiter="\t" if file.endswith(".tsv") else ","):
            step, *columns = row
            for column in columns:
                with suppress(TypeError, ValueError):
                    found.setdefault(column, []).append((float(row[step]), float(row[column])))
    return {column: points for column, points in found.items() if points}


def read_curves(file: Path) -> dict[str, Points]:
    """Column -> its points; empty if there is no such table."""
    return curves_in(file.read_text(encoding="utf-8"), file.name) if file.is_file() else {}


def draw_curves(panels: Sequence[Panel]) -> bytes:
    """Draw panels side by side as PNG; the same curves give the same bytes on every machine."""
    # Half a second of imports: only if there is something to draw.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture, (width, height) = io.BytesIO(), PANEL_INCHES
    with mpl.rc_context():
        mpl.rcdefaults()  # not this machine's matplotlibrc; the font comes with matplotlib
        figure = Figure(figsize=(width * len(panels), height), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for label, points in panel.curves.items():
                marker = "" if len(points) > MAX_MARKED else "o"
                axes.plot(*zip(*points, strict=True), label=label, marker=marker, markersize=4)
            axes.set(title=panel.title, xlabel="step", ylabel=panel.unit)
            if len(panel.curves) > 1:
                axes.legend(frameon=False)
            axes.spines[["top", "right"]].set_visible(False)
        # Without the version of matplotlib, which the file would name.
        figure.savefig(picture, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return picture.getvalue()
