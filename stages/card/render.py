"""The model card: its head, which the Hub reads (the model-index), its text and the picture of its curves."""

from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import ModelCardData

from stages.card.card import example_prompt, filled_card
from stages.card.inputs import CardInputs
from stages.card.params import CardParams, Destination
from stages.card.rows import TASK_TYPE, model_index
from stages.formats.reports import Points, read_curve
from stages.formats.revision.provenance import CARD, CURVES
from stages.runtime.hub import HUB_COMMIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def render_card(params: CardParams, destination: Destination, inputs: CardInputs, folder: Path) -> None:
    """Write the card and its picture below `folder`. The same inputs give the same bytes."""
    with_curves = draw_curves(folder / CURVES)
    head = metadata(params, destination, inputs).to_yaml()
    text = filled_card(params, destination, inputs, head, with_curves=with_curves)
    (folder / CARD).write_text(text, encoding="utf-8")


def metadata(params: CardParams, destination: Destination, inputs: CardInputs) -> ModelCardData:
    """The card's front matter. Its `widget` has the prompt of the example, also for those who try the model here."""
    prompt = example_prompt(params, inputs)
    base_model = HUB_COMMIT.fullmatch(str(inputs.training_params.get("start_from")))
    return ModelCardData(
        language=list(params.language),
        license=params.license,
        library_name="transformers",
        pipeline_tag=TASK_TYPE,
        tags=list(params.tags),
        base_model=base_model["repository"] if base_model else None,
        model_name=destination.name,
        widget=[{"text": prompt}] if prompt else None,
        eval_results=model_index(inputs),
    )


SIZE_INCHES, DOTS_PER_INCH = (9.0, 3.4), 110

LOSSES = {"training_loss": "training", "validation_loss": "held out"}


def draw_curves(target: Path) -> bool:
    """Write the picture as PNG; False if no curves were recorded."""
    losses = {label: points for name, label in LOSSES.items() for points in read_curve(name).values() if points}
    rates = {name: points for name, points in read_curve("learning_rate").items() if points}
    if not losses:
        return False
    # Half a second of imports: only if there is something to draw.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # not this machine's matplotlibrc; the font comes with matplotlib
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        panels = [("loss", "nats per token", losses), *([("learning rate", "", rates)] if rates else [])]
        axes_of_panels = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, unit, series) in zip(axes_of_panels, panels, strict=True):
            plot(axes, series)
            axes.set(title=title, xlabel="step", ylabel=unit)
        # Without the version of matplotlib, which the file would name.
        figure.savefig(target, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return True


def plot(axes: "Axes", series: dict[str, Points]) -> None:
    """A line for each series, with markers if it has few points, and a legend if there are several series."""
    for label, points in series.items():
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, label=label, marker="" if len(points) > 20 else "o", markersize=4)
    if len(series) > 1:
        axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
