"""The model card: its head, which the Hub reads (the model-index), its text and the picture of its curves."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import EvalResult, ModelCardData

from stages.card.card import (
    between,
    drawn,
    example_prompt,
    filled_card,
    interval,
    is_published,
    pass_at_k,
    problem_set_name,
    problems_from,
)
from stages.card.inputs import HELD_OUT, CardInputs
from stages.card.params import CardParams, Destination
from stages.formats.evaluation.generation import Generation
from stages.formats.evaluation.report import Evaluation, Interval
from stages.formats.evaluation.scores import HarnessReport, Measurements, ScoreReport
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


METRICS = {"bits_per_byte": "bits per byte", "loss": "loss (nats per token)", "perplexity": "perplexity"}

TASK_TYPE = "text-generation"


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
        eval_results=[
            *held_out(inputs.evaluation),
            *of_problems(inputs.score, inputs.generation),
            *of_harness(inputs.harness),
            *(result for report in inputs.measurements.values() for result in measured(report)),
        ],
    )


def held_out(evaluation: Evaluation) -> Iterator[EvalResult]:
    """The metrics of the validation split."""
    for name, title in METRICS.items():
        yield EvalResult(
            task_type=TASK_TYPE,
            dataset_type=HELD_OUT,
            dataset_name="held-out documents",
            dataset_split="validation",
            metric_type=name,
            metric_name=named(title, getattr(evaluation.interval_95, name)),
            metric_value=getattr(evaluation, name),
        )


def of_problems(report: ScoreReport, generation: Generation) -> Iterator[EvalResult]:
    """pass@k as cards name it on the Hub."""
    for name, found, k, score in pass_at_k(report):
        source = problems_from(found, generation)
        set_name = name if is_published(name, found) or not source else source
        samples = f"{found.samples // found.problems:,} samples of each problem"
        yield EvalResult(
            task_type=TASK_TYPE,
            task_name="Code Generation",
            dataset_type=set_name,
            dataset_name=problem_set_name(name, found),
            metric_type=f"pass@{k}",
            metric_name=named(f"pass@{k} ({samples}, {drawn(generation)})", score.interval_95),
            metric_value=score.value,
        )


def of_harness(report: HarnessReport) -> Iterator[EvalResult]:
    """The metrics of tasks that were scored whole: the Hub shows them next to those of other models."""
    for name, task in sorted(report.tasks.items()):
        for metric, value in sorted(report.harness[name].items()):
            if value is not None and task.documents == task.documents_in_task:
                title = f"{metric} ({task.num_fewshot}-shot, lm-evaluation-harness)"
                yield EvalResult(
                    task_type=TASK_TYPE,
                    dataset_type=name,
                    dataset_name=name,
                    metric_type=metric,
                    metric_name=named(title, interval(report, name, metric), ".4g"),
                    metric_value=value,
                )


def measured(report: Measurements) -> Iterator[EvalResult]:
    """The metrics of a report that says itself what it measured."""
    for name, metric in report.metrics.items():
        if metric.value is not None:
            title = f"{metric.label} ({metric.unit})" if metric.unit else metric.label
            yield EvalResult(
                task_type=TASK_TYPE,
                dataset_type=report.data_set,
                dataset_name=report.title,
                metric_type=name,
                metric_name=named(title, metric.interval_95),
                metric_value=metric.value,
            )


def named(metric: str, ends: Interval | None, digits: str = "g") -> str:
    """A metric's name with its interval, for which the Hub's model-index has no field."""
    return f"{metric}, 95 % interval {between(ends, digits)}" if ends else metric


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
