"""The head of a model card: what the Hub reads of a model, with its metrics (the model-index)."""

import re
from collections.abc import Iterator

from huggingface_hub import EvalResult, ModelCardData

from stages.formats.evaluation.generation import Generation
from stages.formats.evaluation.harness import HarnessReport
from stages.formats.evaluation.measurements import Measurements
from stages.formats.evaluation.report import Evaluation, Interval
from stages.formats.evaluation.verdicts import ScoreReport
from stages.formats.revision.model_index import HELD_OUT, HELD_OUT_NAME, problem_set_name
from stages.publish.card.values import FEWEST, between, drawn, interval, is_published, pass_at_k, problems_from
from stages.publish.inputs import CardInputs
from stages.publish.params import PublishParams

HUB_COMMIT = re.compile(r"(?P<repository>[\w.-]+(/[\w.-]+)?)@(?P<commit>[0-9a-f]{40})")
"""A model or data set of the Hub, as params.yaml names it."""

METRICS = {"bits_per_byte": "bits per byte", "loss": "loss (nats per token)", "perplexity": "perplexity"}

TASK_TYPE = "text-generation"


def metadata(params: PublishParams, inputs: CardInputs) -> ModelCardData:
    """The card's front matter."""
    base_model = HUB_COMMIT.fullmatch(str(inputs.recorded.training.get("start_from")))
    return ModelCardData(
        language=list(params.language),
        license=params.license,
        library_name="transformers",
        pipeline_tag=TASK_TYPE,
        tags=list(params.tags),
        base_model=base_model["repository"] if base_model else None,
        model_name=params.name,
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
            dataset_name=HELD_OUT_NAME,
            dataset_split="validation",
            metric_type=name,
            metric_name=named(title, getattr(evaluation.interval_95, name), evaluation.documents),
            metric_value=getattr(evaluation, name),
        )


def of_problems(report: ScoreReport, generation: Generation) -> Iterator[EvalResult]:
    """pass@k as cards name it on the Hub; a data set of the Hub by its name and commit."""
    for name, found, k, score in pass_at_k(report):
        source = problems_from(found, generation)
        hub = HUB_COMMIT.fullmatch(source)
        set_name = name if is_published(name, found) or not source else source
        samples = f"{found.samples // found.problems:,} samples of each problem"
        yield EvalResult(
            task_type=TASK_TYPE,
            task_name="Code Generation",
            dataset_type=hub["repository"] if hub else set_name,
            dataset_name=problem_set_name(name, found.problems),
            dataset_revision=hub["commit"] if hub else None,
            metric_type=f"pass@{k}",
            metric_name=named(f"pass@{k} ({samples}, {drawn(generation)})", score.interval_95, found.problems),
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
                    metric_name=named(title, *interval(report, name, metric)),
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
                metric_name=named(title, metric.interval_95, metric.over),
                metric_value=metric.value,
            )


def named(metric: str, ends: Interval | None, count: int, digits: str = "g") -> str:
    """A metric's name with its interval, for which the Hub's model-index has no field."""
    if ends is None:
        return metric
    if count < FEWEST:
        return f"{metric}, too few for an interval ({count})"
    return f"{metric}, 95 % interval {between(ends, count, digits)}"
