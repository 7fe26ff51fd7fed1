"""Curves that stages write as tables: read, and drawn as one picture."""

import base64
import csv
import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.plan.settings import CurveFigure

MOST_POINTS = 500
"""Of a curve that is drawn."""

Points = list[tuple[float, float]]


def curve_points(text: str, location: str) -> Iterator[tuple[float, float]]:
    """The points of a curve, FILE:COLUMN, in its file's text, of which the first column is the horizontal axis.

    A row is left out where one of the two is empty or no number.
    """
    file, _, column = location.partition(":")
    with suppress(csv.Error):
        for row in csv.DictReader(io.StringIO(text), delimiter="\t" if file.endswith(".tsv") else ","):
            with suppress(TypeError, ValueError):
                yield float(next(iter(row.values()))), float(row.get(column) or "")


def read_series(figure: "CurveFigure") -> dict[str, Points]:
    """The curves of a figure by label, thinned out to `MOST_POINTS` each; those without any points are left out."""
    return {label: points for label, location in figure.series.items() if (points := _points(location))}


def _points(location: str) -> Points:
    file = Path(location.partition(":")[0])
    points = list(curve_points(file.read_text(encoding="utf-8"), location)) if file.is_file() else []
    step = max(1, -(-len(points) // MOST_POINTS))
    return [*points[:-1:step], *points[-1:]]


def draw(figures: list[tuple["CurveFigure", dict[str, Points]]]) -> str:
    """Figures with their curves as a PNG in a data URL."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(
        1, len(figures), figsize=(5 * len(figures), 3.6), layout="constrained", squeeze=False
    )
    for axis, (figure, series) in zip(axes[0], figures, strict=True):
        for label, points in series.items():
            steps, values = zip(*points, strict=True)
            axis.plot(steps, values, label=label, marker="" if len(points) > 20 else "o", markersize=4)
        axis.set(title=figure.title, xlabel="step", ylabel=figure.y)
        if len(series) > 1:
            axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    canvas.savefig(picture, format="png", dpi=110)
    pyplot.close(canvas)
    return f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"
