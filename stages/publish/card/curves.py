"""The card's picture: losses and learning rate by step. The same curves give the same bytes.

On the page of a revision (`parrotflow published show --page`) the revision before is in grey; not in the card itself,
which is the same wherever it is published.
"""

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from stages.formats.reports import CURVES, Points, read_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES, DOTS_PER_INCH = (9.0, 3.4), 110

LOSSES = {"training_loss": "training", "validation_loss": "held out"}


def draw_curves(target: "Path | BinaryIO", folder: Path = CURVES, before: Path | None = None) -> bool:
    """Write the picture as PNG, with the curves of the folder `before` in grey; False where none were recorded."""
    losses, rates = read_losses(folder), read_rates(folder)
    if not losses:
        return False
    grey = (read_losses(before), read_rates(before)) if before else ({}, {})
    # Half a second of imports: only where there is something to draw.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # not this machine's matplotlibrc; the font comes with matplotlib
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        panels = [("loss", "nats per token", losses), *([("learning rate", "", rates)] if rates else [])]
        axes_of_panels = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, unit, series), earlier in zip(axes_of_panels, panels, grey, strict=False):
            plot(axes, series, earlier)
            axes.set(title=title, xlabel="step", ylabel=unit)
        # Without the version of matplotlib, which the file would name.
        figure.savefig(target, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return True


def read_losses(folder: Path) -> dict[str, Points]:
    """Label -> points, of the losses."""
    return {label: points for name, label in LOSSES.items() for points in read_curve(name, folder).values() if points}


def read_rates(folder: Path) -> dict[str, Points]:
    """Label -> points, of the learning rates."""
    return {name: points for name, points in read_curve("learning_rate", folder).items() if points}


def plot(axes: "Axes", series: dict[str, Points], earlier: dict[str, Points]) -> None:
    """A line for each series; points where there are few, and a legend where there are several."""
    for number, points in enumerate(earlier.values()):
        label = "revision before" if number == 0 else None
        axes.plot(*zip(*points, strict=True), color="0.75", linewidth=1.2, label=label, zorder=1)
    for label, points in series.items():
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, label=label, marker="" if len(points) > 20 else "o", markersize=4)
    if earlier or len(series) > 1:
        axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
