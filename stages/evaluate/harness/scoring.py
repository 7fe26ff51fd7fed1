"""The model as lm-eval calls it, a cache of its answers by all that they depend on, and its results as a report."""

import hashlib
import inspect
import json
import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.api.metrics import mean
from lm_eval.api.model import CachingLM
from lm_eval.api.task import Task
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks.manager import TaskDict

from stages.evaluate.bootstrap import interval_95
from stages.evaluate.harness.params import HarnessParams
from stages.evaluate.harness.tasks import TASK_FILES
from stages.evaluate.libraries import BARS
from stages.evaluate.model import answers_key, open_model, open_tokenizer
from stages.formats.evaluation.harness import HarnessReport, ScoredWith, TaskReceipt
from stages.formats.model_folder import MODEL, weights_sha256
from stages.formats.reports import MODEL_LIBRARIES, releases, significant
from stages.runtime.cache import ResultLog, cache_key, drop_unused
from stages.runtime.code import code_key
from stages.runtime.entry import UserError, first_line, whole_number

REQUESTS_VARIABLE = "PARROTFLOW_HARNESS_BATCH"
DEFAULT_BATCH = {"cpu": 4, "cuda": 16}
"""Requests at once. On 2 cores lm-eval's rolling windows with 4 and 16: a GPT-2 of 4.3M 2.9 and 3.3 s (windows of 256),
one of 124M 22 and 25 s (1,024), the default model 1.6 s with both.
"""

ANSWERS = "harness"
"""Their kind in the cache."""

DRAWING_BARS = ("loglikelihood", "loglikelihood_rolling", "generate_until", "_loglikelihood_tokens")
"""The model's methods that tell tqdm to draw a bar, against TQDM_DISABLE; the last one does so for each batch."""

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns about how it is called here


@dataclass(frozen=True)
class LanguageModel:
    """A model folder, opened for lm-eval."""

    lm: HFLM
    sha256: str
    """Of the weights."""
    key: str
    """A hash of what an answer depends on, without the request: weights, configuration, tokenizer, code, versions."""


@dataclass(frozen=True)
class Scored:
    """The results of the tasks that a name of `harness.tasks` selects: a task, or those of a group or tag."""

    tasks: Mapping[str, Task]
    config_sha256: Mapping[str, str]
    results: Mapping[str, Any]
    """As `lm_eval.evaluator.evaluate` returns them, with the samples."""


def open_language_model(folder: Path = MODEL) -> LanguageModel:
    """The model, prompted as it was trained: each text follows the end-of-sequence id.

    The tokenizer of a model folder adds that id (`stages/train/model/tokenizer.py`).
    """
    model, tokenizer = open_model(folder), open_tokenizer(folder)
    tokenizer.split_special_tokens = True  # the name of a special token in a text is text
    lm = _Model(
        pretrained=model,
        tokenizer=tokenizer,
        prefix_token_id=tokenizer.eos_token_id,
        add_bos_token=True,
        batch_size=whole_number(REQUESTS_VARIABLE, DEFAULT_BATCH.get(model.device.type, 16)),
    )
    if not BARS:
        for name in DRAWING_BARS:
            setattr(lm, name, without_bars(getattr(lm, name)))
    versions = [version(library) for library in ("lm_eval", "tokenizers", "torch", "transformers")]
    key = cache_key(answers_key(folder), code_key(open_language_model), *versions)
    return LanguageModel(lm, weights_sha256(folder), key)


class _Model(HFLM):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's model. Left to itself, lm-eval begins only texts without a context with the prefix id."""

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """As `HFLM` has it, whose windows begin with the prefix id already."""
        self.add_bos_token = False
        try:
            found: list[float] = super().loglikelihood_rolling(requests, disable_tqdm)
        finally:
            self.add_bos_token = True
        return found


def without_bars(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of lm-eval's model that draws no progress bar, also where lm-eval asks it to."""
    return lambda *values, **options: method(*values, **options | {"disable_tqdm": True})


def score(model: LanguageModel, loaded: TaskDict, params: HarnessParams) -> Scored:
    """Run the model on every request that has no stored answer, and compute the tasks' metrics.

    Answers are stored under a hash of the weights, the tasks and the versions, each as soon as it is computed: a kill
    loses none, and answers of other weights at the same path are never read.
    """
    hashes = {name: config_sha256(task) for name, task in loaded["tasks"].items()}
    random.seed(params.seed)
    np.random.seed(params.seed)
    torch.manual_seed(params.seed)
    key = cache_key(model.key, *(hashes[name] for name in sorted(hashes)))
    try:
        answering = _Answering(model.lm, ResultLog(ANSWERS, key))
        results = evaluate(answering, loaded, limit=params.limit, bootstrap_iters=params.bootstrap_resamples)
    except Exception as error:  # a task's file may run any code, and lm-eval raises what it likes
        what = f"{type(error).__name__}: {first_line(error)}" if str(error) else type(error).__name__
        raise UserError(
            f"harness.tasks: {', '.join(sorted(hashes))}: lm-eval cannot score it ({what}); correct the task's file, "
            "its data or the parameters of `harness`, or remove it"
        ) from error
    drop_unused(ANSWERS)
    return Scored(loaded["tasks"], hashes, results or {})


class _Answering(CachingLM):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's model with stored answers, which are in a log instead of its SQLite file."""

    def __init__(self, lm: HFLM, log: ResultLog) -> None:
        self.lm, self.cache_db, self.dbdict = lm, str(log.file), _Answers(log)
        lm.set_cache_hook(self.get_cache_hook())


class _Answers(dict[str, Any]):
    """Answers by lm-eval's hash of the request: a text, a log-likelihood, or one with whether it is the likeliest."""

    def __init__(self, log: ResultLog) -> None:
        super().__init__((key, tuple(one) if isinstance(one, list) else one) for key, one in log.read().items())
        self.log = log

    def __setitem__(self, key: str, answer: Any) -> None:
        if key not in self:  # lm-eval stores most answers twice
            self.log.append(key, answer)
        super().__setitem__(key, answer)

    def commit(self) -> None:
        """Nothing to do: each answer is written at once."""


def config_sha256(task: Task) -> str:
    """The sha256 of a task's resolved file, with the source of its functions and without its path."""
    config = dict(task.dump_config())
    config["metadata"] = {name: value for name, value in config["metadata"].items() if name != "config_source"}
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=_source).encode()).hexdigest()


def _source(value: object) -> str:
    if inspect.isroutine(value) or inspect.isclass(value):
        return inspect.getsource(value)
    return type(value).__name__  # no address: the same in every process


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
            tasks[name] = receipt(one, name, model.lm)
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


def require_room(tasks: Mapping[str, Task], lm: HFLM) -> None:
    """Raise UserError for a task whose answers may be as long as all that the model reads: no prompt would fit."""
    for name, task in tasks.items():
        if task.OUTPUT_TYPE != "generate_until":
            continue
        tokens, most = answer_tokens(task.config.generation_kwargs, lm), lm.max_length
        if tokens >= most:
            raise UserError(
                f"harness.tasks: {name}: its answers have up to {tokens} tokens, and the model reads {most} at once: "
                f"set `generation_kwargs: {{max_gen_toks: {max(1, most // 4)}}}` in a copy of its file in "
                f"{TASK_FILES}/, or remove it"
            )


def answer_tokens(options: Mapping[str, Any] | None, lm: HFLM) -> int:
    """How long an answer may be by a task's `generation_kwargs`, or by lm-eval's default."""
    return int(normalize_gen_kwargs(dict(options or {}), lm.max_gen_toks)["max_gen_toks"])


def cut_requests(samples: Sequence[Mapping[str, Any]], lm: HFLM) -> tuple[int, int]:
    """How many requests these samples made, and how many of them are longer than what the model reads."""
    by_document = {sample["doc_id"]: sample["arguments"] for sample in samples}  # a row for each filter
    requests = [request for arguments in by_document.values() for request in arguments]
    return len(requests), sum(is_cut(request, lm) for request in requests)


def is_cut(request: Sequence[Any], lm: HFLM) -> bool:
    """Whether lm-eval cuts the beginning of a request. It reads texts without a context window by window."""
    match request:
        case (str(context), str(continuation)):
            return bool(len(lm.tok_encode(context + continuation)) > lm.max_length + 1)  # the last token is not read
        case (str(context), dict() as options):
            return bool(len(lm.tok_encode(context)) > lm.max_length - answer_tokens(options, lm))
        case _:
            return False


def note_cut_requests(report: HarnessReport) -> None:
    """Print a line for each task of whose requests the model did not read all."""
    for name, task in report.tasks.items():
        if task.requests_cut:
            print(
                f"note: {name}: {task.requests_cut:,} of {task.requests:,} requests are longer than the model reads at "
                "once, so their beginning is cut, examples first: lower harness.num_fewshot, or train longer sequences",
                flush=True,
            )


def receipt(scored: Scored, name: str, lm: HFLM) -> TaskReceipt:
    """What a task's metrics were computed from."""
    results = scored.results
    requests, requests_cut = cut_requests(results["samples"][name], lm)
    documents = {sample["doc_id"]: sample["doc_hash"] for sample in results["samples"][name]}
    return TaskReceipt(
        version=str(results["versions"][name]),
        config_sha256=scored.config_sha256[name],
        documents_sha256=hashlib.sha256("".join(documents[key] for key in sorted(documents)).encode()).hexdigest(),
        documents=len(documents),
        documents_in_task=results["n-samples"][name]["original"],
        num_fewshot=results["n-shot"][name] or 0,
        requests=requests,
        requests_cut=requests_cut,
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
        ends = bootstrap(values, aggregate, params.bootstrap_resamples, params.seed)
        if ends and all(map(math.isfinite, ends)):
            intervals[name] = ends
    return intervals


def bootstrap(
    values: Sequence[Any], aggregate: Callable[[list[Any]], float], resamples: int, seed: int
) -> tuple[float, float] | None:
    """The interval of `aggregate(values)`, by drawing values with replacement; none of one value, which cannot vary."""
    if len(values) < 2:
        return None
    generator = np.random.default_rng(seed)
    draws = (generator.integers(len(values), size=len(values)) for _ in range(resamples))
    return interval_95(np.array([aggregate([values[index] for index in draw]) for draw in draws]))


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
