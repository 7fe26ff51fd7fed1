"""Finds the tasks that were asked for, refuses those that would run code, and loads the others with their data."""

import difflib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import yaml
from lm_eval.api.registry import metric_registry
from lm_eval.tasks import TaskManager
from lm_eval.tasks.manager import Entry, Kind, TaskDict, load_yaml

from stages.evaluate.harness.params import HarnessParams
from stages.runtime.entry import UserError, first_line
from stages.runtime.hub import data_set_error

TASK_FILES = Path("evaluation/tasks")
"""The project's own task files, with the data and the Python files that they name."""

LOCAL_FORMATS = ("arrow", "csv", "json", "parquet", "text")
"""What `dataset_path` says where `data_files` are files."""


def index_tasks(names: tuple[str, ...]) -> TaskManager:
    """An index of the project's task files, with lm-eval's own where a name needs one.

    Raises UserError for a task file that cannot be read, an unknown name, a task that is asked for twice, one that
    would run code, and a group that holds itself.
    """
    for path in sorted(TASK_FILES.rglob("*.yaml")):
        require_readable(path)
    manager = TaskManager(include_path=TASK_FILES, include_defaults=False)
    if not all(known(name, manager.task_index) for name in names):
        manager = TaskManager(include_path=TASK_FILES)  # reads 13,000 files
    seen: set[str] = set()
    for name in names:
        found = list(configs(name, manager.task_index))
        if twice := seen & {task for task, _ in found}:
            raise UserError(f"harness.tasks: `{min(twice)}` is asked for twice, by name or by group; remove one")
        seen |= {task for task, _ in found}
        for task, config in found:
            require_no_code(task, config)
    return manager


def require_readable(path: Path) -> None:
    """Raise UserError for a task file that is not YAML; lm-eval would skip it silently."""
    try:
        load_yaml(path, resolve_func=False)
    except (yaml.YAMLError, ValueError, OSError) as error:
        raise UserError(f"{path}: not a task file: {' '.join(str(error).split())}") from None


def known(name: str, index: Mapping[str, Entry]) -> bool:
    """Whether the index holds a name and, of a group, all that the group names."""
    try:
        return all(True for _ in configs(name, index))
    except UserError:
        return False


def configs(
    name: str, index: Mapping[str, Entry], within: tuple[str, ...] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each task that a name selects, with the keys of its file.

    `within` are the groups that the name was found in. Raises UserError for an unknown name, and for a group that holds
    itself.
    """
    entry = index.get(name)
    if entry is None:
        close = ", ".join(difflib.get_close_matches(name, index, n=3))
        hint = f" (is it {close}?)" if close else ""
        raise UserError(
            f"harness.tasks: no task `{name}` in {TASK_FILES}/ or in lm-eval{hint}; `lm-eval ls tasks` lists lm-eval's"
        )
    if entry.kind is Kind.TAG:
        for child in sorted(entry.tags):
            yield from configs(child, index, within)
    elif entry.kind is Kind.GROUP:
        if name in within:
            raise UserError(f"harness.tasks: the group `{name}` holds itself; correct its file in {TASK_FILES}/")
        yield from _group_configs(entry.cfg or {}, index, (*within, name))
    else:
        yield name, entry.cfg or {}


def _group_configs(
    group: dict[str, Any], index: Mapping[str, Entry], within: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for child in group.get("task") or ():
        if isinstance(child, str):
            yield from configs(child, index, within)
            continue
        # A task or a group with other keys than its own file, or one that has no file.
        name = child.get("group") or child.get("task")
        if name in index:
            yield from configs(name, index, within)
        if isinstance(child.get("task"), list):
            yield from _group_configs(child, index, within)
        yield str(name), child


def require_no_code(task: str, config: dict[str, Any]) -> None:
    """Raise UserError for a task that runs generated code, or a script from the Hub."""
    if config.get("unsafe_code"):
        raise UserError(
            f"harness.tasks: `{task}` runs generated code without a sandbox; remove it: the stages `generate` and "
            "`score` run such problems in one (docs/how-to/evaluation.md)"
        )
    for metric in config.get("metric_list") or ():
        name = metric.get("metric")
        computed_by_task = config.get("process_results") or "/" in str(name)  # `!function` is a path here
        if metric.get("hf_evaluate") or (name not in metric_registry and not computed_by_task):
            raise UserError(
                f"harness.tasks: `{task}`: its metric `{name}` is a script that `evaluate` would download from the "
                f"Hub and run; copy the task's file to {TASK_FILES}/ under another name, and choose one of lm-eval's "
                "own metrics there"
            )


@contextmanager
def loaded(name: str, manager: TaskManager, params: HarnessParams) -> Iterator[TaskDict]:
    """The tasks that a name selects, with their data and few-shot settings.

    Raises UserError for a task whose file is wrong or whose data or library is missing, UnavailableError where the Hub
    does not answer.
    """
    origins = {str(config.get("dataset_path")) for _, config in configs(name, manager.task_index)}
    local = any(origin in LOCAL_FORMATS or Path(origin).is_dir() for origin in origins)
    sys.dont_write_bytecode = True  # next to a task file DVC would take it for a change of the folder
    with TemporaryDirectory() as folder:  # the data of the tasks is read from it until they are scored
        try:
            with cache_in(Path(folder)) if local else nullcontext():
                tasks = manager.load([name])
        except Exception as error:  # a task's file, its functions and its data may raise any
            raise load_error(name, error) from None
        for task in tasks["tasks"].values():
            require_no_code(task.task_name, {"unsafe_code": getattr(task, "UNSAFE_CODE", False)})  # of its class
            # As lm_eval.simple_evaluate does: a task that is defined without examples stays so.
            if params.num_fewshot is not None and task.get_config("num_fewshot") != 0:
                task.set_config(key="num_fewshot", value=params.num_fewshot)
            task.set_fewshot_seed(seed=params.seed)
            drawn = task.get_config("generation_kwargs") or {}
            if drawn.get("temperature") and drawn.get("do_sample") is None:
                # lm-eval draws in any case; only if this says so it never reads such answers from its cache.
                drawn["do_sample"] = True
        yield tasks


def load_error(name: str, error: Exception) -> UserError:
    """What went wrong, where, and what to do."""
    what = f"harness.tasks: `{name}` cannot be loaded ({type(error).__name__}: {first_line(error)})"
    if isinstance(error, ImportError):
        return UserError(f"{what}; install the library that it needs, or remove the task")
    copied = f"a copy of its file in {TASK_FILES}/ may name local `data_files`"
    return data_set_error(what, error, f"correct its file or its data ({copied}), or remove it")


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """An empty folder as the cache of `datasets`, which trusts the time of a local file, not its content."""
    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = folder
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before
