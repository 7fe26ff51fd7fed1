"""The card's picture: losses and learning rate by step. The same curves give the same bytes."""

from pathlib import Path
from typing import TYPE_CHECKING

from stages.formats.reports import CURVES, Points, read_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES, DOTS_PER_INCH = (9.0, 3.4), 110

LOSSES = {"training_loss": "training", "validation_loss": "held out"}


def draw_curves(target: Path, folder: Path = CURVES) -> bool:
    """Write the picture as PNG; False where no curves were recorded."""
    losses = {label: points for name, label in LOSSES.items() for points in read_curve(name, folder).values() if points}
    if not losses:
        return False
    rates = {name: points for name, points in read_curve("learning_rate", folder).items() if points}
    # Half a second of imports: only where there is something to draw.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # whatever this machine's matplotlibrc says; the font comes with matplotlib
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        panels = [("loss", "nats per token", losses), *([("learning rate", "", rates)] if rates else [])]
        for axes, (title, unit, series) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            plot(axes, series)
            axes.set(title=title, xlabel="step", ylabel=unit)
        # Without the version of matplotlib, which the file would name.
        figure.savefig(target, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return True


def plot(axes: "Axes", series: dict[str, Points]) -> None:
    """A line for each series; points where there are few, and a legend where there are several."""
    for label, points in series.items():
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, label=label, marker="" if len(points) > 20 else "o", markersize=4)
    if len(series) > 1:
        axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
