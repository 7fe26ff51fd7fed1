"""Runs lm-evaluation-harness on a model folder: one call of `simple_evaluate` per name in `harness.tasks`."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
from lm_eval import simple_evaluate
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks.manager import Kind, TaskDict

from stages.evaluate.harness.params import TASK_FILES, HarnessParams
from stages.evaluate.libraries import BARS
from stages.evaluate.model import open_config, open_model, open_tokenizer, position_limit
from stages.formats.evaluation.intervals import RESAMPLES
from stages.formats.model_folder import MODEL, weights_sha256
from stages.formats.reports import MODEL_LIBRARIES, releases
from stages.runtime.atomic import file_sha256
from stages.runtime.cache import cache_folder, cache_key, drop_unused
from stages.runtime.errors import UnavailableError, UserError, first_line, whole_number
from stages.runtime.hub import data_set_error
from stages.runtime.stage_code import computing_sha256

HARNESS_LIBRARIES = (*MODEL_LIBRARIES, "datasets", "lm_eval")
"""The libraries that answers depend on."""

REQUESTS_VARIABLE = "PARROTFLOW_HARNESS_BATCH"
DEFAULT_BATCH = {"cpu": 4, "cuda": 16}
"""Requests at once. On 2 cores lm-eval's rolling windows took, with 4 and 16 at once: 2.9 and 3.3 s for a GPT-2 of 4.3M
(windows of 256), 22 and 25 s for one of 124M (1,024), and 1.6 s for the default model with either."""

ANSWERS = "harness"
"""The cache's name for lm-eval's answers."""

DRAWING_BARS = ("loglikelihood", "loglikelihood_rolling", "generate_until", "_loglikelihood_tokens")
"""The model's methods that draw progress bars in spite of TQDM_DISABLE; the last one draws one per batch."""

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns about the calls below


@dataclass(frozen=True)
class Scored:
    """A model's results."""

    lm: HFLM
    weights_sha256: str
    results: list[dict[str, Any]]
    """The return value of `simple_evaluate` for each name of `harness.tasks`."""


def score(folder: Path, params: HarnessParams) -> Scored:
    """Score a model folder on every task of `params`.

    lm-eval caches the model's answers in a file named by a hash of everything that they depend on, so that a run after
    a kill or a failure reuses them.

    After all other tasks, raises UserError that names each task that could not be found, loaded or scored, or
    UnavailableError if the Hub did not answer for one of them.
    """
    manager, own = managers(params)
    lm = open_language_model(folder)
    files = (f"{path.name} {file_sha256(path)}" for path in sorted(folder.iterdir()) if path.is_file())
    key = cache_key(lm.device.type, *files, computing_sha256(__name__), str(releases(HARNESS_LIBRARIES)))
    results, failed = [], []
    for name in params.tasks:
        try:
            with _data_of(name, own):
                results.append(
                    simple_evaluate(
                        lm,
                        tasks=[name],
                        task_manager=manager,
                        num_fewshot=params.num_fewshot,
                        limit=params.limit,
                        bootstrap_iters=RESAMPLES,
                        use_cache=str(cache_folder(ANSWERS, key) / "answers"),
                        random_seed=params.seed,
                        numpy_random_seed=params.seed,
                        torch_random_seed=params.seed,
                        fewshot_random_seed=params.seed,
                    )
                )
        except Exception as error:  # task files may run any code, and lm-eval raises many kinds of errors
            failed.append(_task_error(name, error))
        else:
            print(f"scored {name}", flush=True)
    drop_unused()
    if failed:
        kind = UnavailableError if any(isinstance(error, UnavailableError) for error in failed) else UserError
        raise kind("\n".join(map(str, failed)))
    return Scored(lm, weights_sha256(folder), results)


class _Tasks(TaskManager):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's tasks. Tasks that sample answers are marked so, or its cache would return those of another seed.

    lm-eval logs and skips a metric that is a Hub script; here it is an error.
    """

    def load(self, task_list: list[str]) -> TaskDict:
        loaded: TaskDict = super().load(task_list)
        for task in loaded["tasks"].values():
            options = task.get_config("generation_kwargs") or {}
            if options.get("temperature"):
                options.setdefault("do_sample", True)
            if isinstance(task, ConfigurableTask):
                _leave_the_question_out_of_its_examples(task)
            unknown = [metric for metric, function in getattr(task, "_metric_fn_list", {}).items() if function is None]
            if unknown:
                raise ValueError(f"the metric `{unknown[0]}` is a Hub script, which is never executed")
        return loaded


def _leave_the_question_out_of_its_examples(task: ConfigurableTask) -> None:
    """If examples come from the scored split, make lm-eval exclude the question itself from them.

    It does so only if `fewshot_split` and `test_split` are equal (`ConfigurableTask.fewshot_context`).
    """
    config, examples = task.config, task.fewshot_cfg
    preset = None if examples.samples else config.training_split or config.validation_split or config.test_split
    if (examples.split or preset) == (config.test_split or config.validation_split):
        examples.split = config.test_split


def managers(params: HarnessParams) -> tuple[TaskManager, TaskManager]:
    """The tasks to search, and the project's own. lm-eval's 13,000 files are read only if one of its tasks is needed.

    Raises UserError if a task is in neither.
    """
    own = every = _Tasks(include_path=TASK_FILES, include_defaults=False)
    tasks = {name for name, entry in own.task_index.items() if entry.kind in (Kind.TASK, Kind.PY_TASK)}
    if not tasks.issuperset(params.tasks):
        every = _Tasks(include_path=TASK_FILES)
    for name in params.tasks:
        if name not in every.task_index:
            raise UserError(
                f"harness.tasks: no task `{name}` in {TASK_FILES}/ or in lm-eval; `lm-eval ls tasks` lists lm-eval's"
            )
    return every, own


@contextmanager
def _data_of(name: str, own: TaskManager) -> Iterator[None]:
    """For a task of the project, give `datasets` an empty cache, as it trusts a local file's time, not its content.

    Bytecode is not written next to a task file, where DVC would detect it as a change of the folder.
    """
    cache, bytecode = datasets.config.HF_DATASETS_CACHE, sys.dont_write_bytecode
    with TemporaryDirectory() as folder:
        if name in own.task_index:
            datasets.config.HF_DATASETS_CACHE = Path(folder)
        sys.dont_write_bytecode = True
        try:
            yield
        finally:
            datasets.config.HF_DATASETS_CACHE, sys.dont_write_bytecode = cache, bytecode


def _task_error(name: str, error: Exception) -> UserError:
    what = f"harness.tasks: `{name}` cannot be scored ({type(error).__name__}: {first_line(error)})"
    copied = f"a copy of its file in {TASK_FILES}/ may set `generation_kwargs.max_gen_toks` or local `data_files`"
    return data_set_error(what, error, f"correct its file or its data ({copied}), or remove it")


def open_language_model(folder: Path = MODEL) -> HFLM:
    """The model, prompted as it was trained: the tokenizer begins each text with the end-of-sequence id.

    Exported steps use the tokenizer of the final model.
    """
    model, tokenizer = open_model(folder), open_tokenizer(MODEL)
    tokenizer.split_special_tokens = True  # special tokens' names in a text are plain text
    lm = _Model(
        pretrained=model,
        tokenizer=tokenizer,
        max_length=position_limit(open_config(MODEL)),
        prefix_token_id=tokenizer.eos_token_id,
        add_bos_token=True,
        batch_size=whole_number(REQUESTS_VARIABLE) or DEFAULT_BATCH.get(model.device.type, 16),
    )
    if not BARS:
        for name in DRAWING_BARS:
            setattr(lm, name, _without_bars(getattr(lm, name)))
    return lm


class _Model(HFLM):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's model, which by default adds the end-of-sequence id only to texts without a context."""

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """As in `HFLM`, whose windows begin with the prefix id already."""
        self.add_bos_token = False
        try:
            losses: list[float] = super().loglikelihood_rolling(requests, disable_tqdm)
        finally:
            self.add_bos_token = True
        return losses


def _without_bars(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values, **options: method(*values, **options | {"disable_tqdm": True})
