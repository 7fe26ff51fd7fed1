"""Turns lm-eval's results into a report and rows of answers."""

import hashlib
import inspect
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs

from stages.evaluate.harness.params import HarnessParams
from stages.evaluate.harness.scoring import HARNESS_LIBRARIES, Scored
from stages.formats.evaluation.intervals import RESAMPLES
from stages.formats.evaluation.scores import HarnessReport, ScoredWith, TaskMetrics, TaskReceipt
from stages.formats.reports import releases, significant


def summarize(scored: Scored, params: HarnessParams) -> HarnessReport:
    """The report of all tasks."""
    return HarnessReport(
        harness=metrics_of(scored, 0),
        stderr={
            task: {name: value for name, value in errors.items() if value is not None}
            for task, errors in metrics_of(scored, 1).items()
        },
        tasks={name: _receipt(results, name, scored.lm) for results in scored.results for name in results["samples"]},
        scored_with=ScoredWith(
            weights_sha256=scored.weights_sha256,
            context_length=scored.lm.max_length,
            seed=params.seed,
            bootstrap_resamples=RESAMPLES,
            versions=releases(HARNESS_LIBRARIES),
        ),
    )


def metrics_of(scored: Scored, which: int) -> TaskMetrics:
    """The metrics of each task and group, or (`which` = 1) their standard errors."""
    by_task = {task: _split(values)[which] for results in scored.results for task, values in results["results"].items()}
    return {task: values for task, values in by_task.items() if values}


def _split(values: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Metrics and standard errors by the metric's name.

    lm-eval's keys are `METRIC,FILTER`: `acc,none` and `acc_stderr,none`. A missing standard error is `N/A`.
    """
    metrics: dict[str, float | None] = {}
    stderr: dict[str, float | None] = {}
    for key, value in values.items():
        metric, comma, answers = key.partition(",")
        if comma and isinstance(value, int | float | np.number):
            name = f"{metric.removesuffix('_stderr')},{answers}".removesuffix(",none")
            (stderr if metric.endswith("_stderr") else metrics)[name] = _number(value)
    return metrics, stderr


def _receipt(results: Mapping[str, Any], name: str, lm: HFLM) -> TaskReceipt:
    samples = results["samples"][name]
    requests, requests_cut = _cut_requests(samples, lm)
    documents = {sample["doc_id"]: sample["doc_hash"] for sample in samples}
    return TaskReceipt(
        version=str(results["versions"][name]),
        config_sha256=_config_sha256(results["configs"][name]),
        documents_sha256=hashlib.sha256("".join(documents[key] for key in sorted(documents)).encode()).hexdigest(),
        documents=len(documents),
        documents_in_task=results["n-samples"][name]["original"],
        num_fewshot=results["n-shot"][name] or 0,
        requests=requests,
        requests_cut=requests_cut,
    )


def _config_sha256(config: Mapping[str, Any]) -> str:
    """The sha256 of a task's resolved file, including the source of its functions but not its path."""
    metadata = {name: value for name, value in (config.get("metadata") or {}).items() if name != "config_source"}
    return hashlib.sha256(
        json.dumps({**config, "metadata": metadata}, sort_keys=True, default=_source).encode()
    ).hexdigest()


def _source(value: object) -> str:
    if inspect.isroutine(value) or inspect.isclass(value):
        return inspect.getsource(value)
    return type(value).__name__  # without its address, which differs between processes


def _cut_requests(samples: Sequence[Mapping[str, Any]], lm: HFLM) -> tuple[int, int]:
    """Count the requests of these samples, and those that are longer than the model's window."""
    by_document = {sample["doc_id"]: sample["arguments"] for sample in samples}  # each filter has its own samples
    requests = [request for arguments in by_document.values() for request in arguments]
    return len(requests), sum(_is_cut(request, lm) for request in requests)


def _is_cut(request: Sequence[Any], lm: HFLM) -> bool:
    """True if lm-eval cuts the beginning of a request. Texts without a context are read in windows, not cut."""
    match request:
        case (str(context), str(continuation)):
            return bool(len(lm.tok_encode(context + continuation)) > lm.max_length + 1)  # the last token is not read
        case (str(context), dict() as options):
            answer = int(normalize_gen_kwargs(dict(options), lm.max_gen_toks)["max_gen_toks"])
            return bool(len(lm.tok_encode(context)) > lm.max_length - answer)
        case _:
            return False


def note_cut_requests(report: HarnessReport) -> None:
    """Print a note for each task with requests that are longer than the model's window."""
    for name, task in report.tasks.items():
        if task.requests_cut:
            print(
                f"note: {name}: {task.requests_cut:,} of {task.requests:,} requests are longer than the model reads at "
                "once, so their beginning is cut, examples first: lower harness.num_fewshot, or train longer sequences",
                flush=True,
            )


def sample_rows(scored: Scored) -> Iterator[dict[str, Any]]:
    """Yield a row with the model's answer and its metrics for each document and filter, sorted by task and document.

    Documents and prompts are stored only as hashes, because a task's license may forbid copies of its data.
    """
    for results in scored.results:
        for task, samples in sorted(results["samples"].items()):
            for sample in sorted(samples, key=lambda sample: (sample["doc_id"], sample["filter"])):
                yield {
                    "task": task,
                    "document": sample["doc_id"],
                    "document_sha256": sample["doc_hash"],
                    "prompt_sha256": sample["prompt_hash"],
                    "target_sha256": sample["target_hash"],
                    "filter": sample["filter"],
                    "answers": _plain(sample["filtered_resps"]),
                    "metrics": {metric: _plain(sample[metric]) for metric in sample["metrics"]},
                }


def _plain(value: Any) -> Any:
    """Convert to JSON types and round numbers."""
    match value:
        case None | bool() | str() | int():
            return value
        case np.bool_():
            return bool(value)
        case float() | np.number():
            return _number(value)
        case list() | tuple() | np.ndarray():
            return [_plain(entry) for entry in value]
        case dict():
            return {str(key): _plain(entry) for key, entry in value.items()}
        case _:
            return str(value)


def _number(value: float | np.number[Any]) -> float | None:
    """Round; None if not finite."""
    rounded = significant(float(value))
    return rounded if math.isfinite(rounded) else None
