"""lm-eval's results as a report and as rows of samples; the same answers give the same bytes."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from lm_eval.api.metrics import mean

from stages.evaluate.bootstrap import interval_95
from stages.evaluate.harness.params import HarnessParams
from stages.evaluate.harness.scoring import LanguageModel, Scored
from stages.formats.evaluation.harness import HarnessReport, ScoredWith, TaskReceipt
from stages.formats.reports import MODEL_LIBRARIES, releases, significant

NO_FILTER = ",none"
"""lm-eval's suffix for metrics of unfiltered answers."""


def summarise(scored: Sequence[Scored], model: LanguageModel, params: HarnessParams) -> HarnessReport:
    """The report of all tasks."""
    metrics: dict[str, dict[str, float | None]] = {}
    stderr: dict[str, dict[str, float]] = {}
    intervals: dict[str, dict[str, tuple[float, float]]] = {}
    tasks: dict[str, TaskReceipt] = {}
    for one in scored:
        for name, values in one.results["results"].items():
            metrics[name], stderr[name] = split_metrics(values)
        for name in one.tasks:
            intervals[name] = bootstrap_intervals(one, name, metrics[name].keys() - stderr[name].keys(), params)
            tasks[name] = receipt(one, name)
    return HarnessReport(
        harness={name: values for name, values in metrics.items() if values},
        stderr={name: values for name, values in stderr.items() if values},
        interval_95={name: values for name, values in intervals.items() if values},
        tasks=tasks,
        scored_with=ScoredWith(
            weights_sha256=model.sha256,
            context_length=model.lm.max_length,
            seed=params.seed,
            bootstrap_resamples=params.bootstrap_resamples,
            versions=releases((*MODEL_LIBRARIES, "datasets", "lm_eval")),
        ),
    )


def split_metrics(values: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, float]]:
    """The metrics of a task or a group by name, and the standard errors of those that have one.

    lm-eval's keys are `acc,none` and `acc_stderr,none`, and `N/A` where there is no standard error.
    """
    metrics: dict[str, float | None] = {}
    stderr: dict[str, float] = {}
    for key, value in values.items():
        metric, comma, answers = key.partition(",")
        if not comma or not isinstance(value, int | float | np.number):
            continue
        name = f"{metric.removesuffix('_stderr')},{answers}".removesuffix(NO_FILTER)
        if not metric.endswith("_stderr"):
            metrics[name] = number(value)
        elif (error := number(value)) is not None:
            stderr[name] = error
    return metrics, stderr


def receipt(scored: Scored, name: str) -> TaskReceipt:
    """What a task's metrics were computed from."""
    results = scored.results
    documents = {sample["doc_id"]: sample["doc_hash"] for sample in results["samples"][name]}
    return TaskReceipt(
        version=str(results["versions"][name]),
        config_sha256=scored.config_sha256[name],
        documents_sha256=hashlib.sha256("".join(documents[key] for key in sorted(documents)).encode()).hexdigest(),
        documents=len(documents),
        documents_in_task=results["n-samples"][name]["original"],
        num_fewshot=results["n-shot"][name] or 0,
    )


def bootstrap_intervals(
    scored: Scored, task: str, names: set[str], params: HarnessParams
) -> dict[str, tuple[float, float]]:
    """95 % percentile bootstrap intervals over documents (Efron 1979) of the named metrics, from the samples."""
    intervals = {}
    for name in sorted(names):
        metric, _, answers = name.partition(",")
        samples = scored.results["samples"][task]
        values = [sample[metric] for sample in samples if sample["filter"] == (answers or "none") and metric in sample]
        aggregate = scored.tasks[task].aggregation().get(metric, mean)
        low, high = bootstrap(values, aggregate, params.bootstrap_resamples, params.seed)
        if low is not None and high is not None:
            intervals[name] = (low, high)
    return intervals


def bootstrap(
    values: Sequence[Any], aggregate: Callable[[list[Any]], float], resamples: int, seed: int
) -> tuple[float | None, float | None]:
    """The interval of `aggregate(values)`, by drawing values with replacement; none of one value, which cannot vary."""
    if len(values) < 2:
        return None, None
    generator = np.random.default_rng(seed)
    draws = (generator.integers(len(values), size=len(values)) for _ in range(resamples))
    low, high = interval_95(np.array([aggregate([values[index] for index in draw]) for draw in draws]))
    return number(low), number(high)


def sample_rows(scored: Sequence[Scored]) -> Iterator[dict[str, Any]]:
    """A row for each document and filter, by task and document: the model's answer and its metrics.

    Documents and prompts are stored as hashes only, since the licence of a task's data may not allow a copy.
    """
    for one in scored:
        for task, samples in sorted(one.results["samples"].items()):
            for sample in sorted(samples, key=lambda sample: (sample["doc_id"], sample["filter"])):
                yield {
                    "task": task,
                    "document": sample["doc_id"],
                    "document_sha256": sample["doc_hash"],
                    "prompt_sha256": sample["prompt_hash"],
                    "target_sha256": sample["target_hash"],
                    "filter": sample["filter"],
                    "answers": plain(sample["filtered_resps"]),
                    "metrics": {metric: plain(sample[metric]) for metric in sample["metrics"]},
                }


def plain(value: Any) -> Any:
    """A value in JSON's types, numbers rounded."""
    match value:
        case None | bool() | str() | int():
            return value
        case np.bool_():
            return bool(value)
        case float() | np.number():
            return number(value)
        case list() | tuple() | np.ndarray():
            return [plain(entry) for entry in value]
        case dict():
            return {str(key): plain(entry) for key, entry in value.items()}
        case _:
            return str(value)


def number(value: float | np.number[Any]) -> float | None:
    """Rounded; None for what is not a number."""
    rounded = significant(float(value))
    return rounded if math.isfinite(rounded) else None
