"""The model as lm-eval calls it, and a cache of its answers, keyed by everything that they depend on."""

import hashlib
import inspect
import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import CachingLM
from lm_eval.api.task import Task
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.manager import TaskDict

from stages.evaluate.harness.params import HarnessParams
from stages.evaluate.libraries import BARS
from stages.evaluate.model import content_key, open_model, open_tokenizer
from stages.formats.model_folder import MODEL, weights_sha256
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
    """The model, prompted as it was trained: each text follows the end-of-sequence id."""
    model, tokenizer = open_model(folder), open_tokenizer(folder)
    tokenizer.split_special_tokens = True  # the name of a special token in a text is text
    lm = HFLM(
        pretrained=model,
        tokenizer=tokenizer,
        prefix_token_id=tokenizer.eos_token_id,
        add_bos_token=False,
        batch_size=whole_number(REQUESTS_VARIABLE, DEFAULT_BATCH.get(model.device.type, 16)),
    )
    if not BARS:
        for name in DRAWING_BARS:
            setattr(lm, name, without_bars(getattr(lm, name)))
    versions = [version(library) for library in ("lm_eval", "tokenizers", "torch", "transformers")]
    key = cache_key(content_key(folder), code_key(open_language_model), *versions)
    return LanguageModel(lm, weights_sha256(folder), key)


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
