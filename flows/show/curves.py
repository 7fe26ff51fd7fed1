"""Draws the curves of a stage as a picture, in the process that records a run: matplotlib takes a second to import."""

import base64
import io
from typing import Any


def draw(figures: list[dict[str, Any]]) -> str:
    """Figures with their points (`flows.show.metrics.read_curves`) as a PNG in a data URL."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(
        1, len(figures), figsize=(5 * len(figures), 3.6), layout="constrained", squeeze=False
    )
    for axis, figure in zip(axes[0], figures, strict=True):
        for label, points in figure["series"].items():
            steps, values = zip(*points, strict=True)
            axis.plot(steps, values, label=label, marker="" if len(points) > 20 else "o", markersize=4)
        axis.set(title=figure["title"], xlabel="step", ylabel=figure["y"])
        if len(figure["series"]) > 1:
            axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    canvas.savefig(picture, format="png", dpi=110)
    pyplot.close(canvas)
    return f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"
