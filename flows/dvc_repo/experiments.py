"""DVC's experiments as data: what `dvc exp show` shows, without the rows of the workspace and of the baselines."""

import subprocess
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from dvc.api import DVCFileSystem
from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.experiments.serialize import ExpRange
from dvc.repo.experiments.show import show
from dvc.repo.experiments.utils import exp_refs

from flows.dvc_repo.internals import open_repo
from flows.dvc_repo.lock_file import LOCK_FILE
from flows.dvc_repo.templating import keys_in_templates
from stages.runtime.dotted import value_at
from stages.runtime.entry import UserError
from stages.runtime.section import PARAMS_FILE


@dataclass(frozen=True)
class DvcExperiment:
    """One experiment."""

    name: str
    state: str
    """`success`, `failed`, `running` or `queued`, in DVC's words."""
    commit: str
    """Of its results; of its queue's entry where it has none."""
    baseline: str
    """The commit that it was started from."""
    ended: str
    """ISO 8601; empty where it has no results."""
    params: dict[str, Any]
    """params.yaml's values, and those of other files of parameters by the file's name."""


def dvc_experiments(names: Collection[str]) -> list[DvcExperiment]:
    """The experiments with these names, of all baselines, the oldest first; also those without a result."""
    with open_repo() as repo:
        found = [
            _experiment(state.rev, held)
            for state in show(repo, revs=_baselines(repo), hide_workspace=True, sha_only=True)
            for held in state.experiments or ()
            if _name(held) in names
        ]
    return sorted(found, key=lambda item: (item.ended, item.name))


def experiment_ref(baseline: str, name: str) -> str:
    """The reference of git that leads to an experiment, which DVC names by the commit that it was started from."""
    return f"refs/exps/{baseline[:2]}/{baseline[2:]}/{name}"


def has_commit(commit: str) -> bool:
    """Whether git has a commit here. A clone has no DVC experiment before `dvc exp pull`."""
    command = ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def head_commit() -> str:
    """The commit that is checked out; empty before the first one."""
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    return subprocess.run(command, capture_output=True, check=False, text=True).stdout.strip()


def texts_at(commit: str, paths: Iterable[str]) -> dict[str, str]:
    """The text of each file at a commit, from git, DVC's cache or its remote; one that is not there is left out."""
    files = DVCFileSystem(url=".", rev=commit)
    texts: dict[str, str] = {}
    for path in paths:
        with suppress(FileNotFoundError):  # `exists` would also say no where a remote does not answer
            texts[path] = files.read_text(path, encoding="utf-8", errors="replace")
    return texts


def stale_at(commit: str, params: Mapping[str, Any], files: Iterable[str]) -> set[str]:
    """Those of the files whose stage has not run with the inputs of this commit, whose params.yaml has these values.

    An experiment that ends before a stage holds that stage's files as they were where it was started from.
    """
    lock = yaml.safe_load(texts_at(commit, [LOCK_FILE]).get(LOCK_FILE, "")) or {}
    stages: Mapping[str, Any] = lock.get("stages") or {}
    writers = {out["path"]: (name, out.get("md5")) for name, stage in stages.items() for out in stage.get("outs", ())}

    def writer(file: str) -> tuple[str, Any] | None:
        return next((writers[str(out)] for out in (Path(file), *Path(file).parents) if str(out) in writers), None)

    @cache
    def is_stale(name: str) -> bool:
        read = stages[name].get("params", {}).get(str(PARAMS_FILE), {})
        if any(value_at(params, key) != value for key, value in read.items()):
            return True
        for dep in stages[name].get("deps", ()):
            if found := writer(dep["path"]):
                same = dep["path"] not in writers or dep.get("md5") == found[1]
                if not same or is_stale(found[0]):
                    return True
        return False

    return {file for file in files if not (found := writer(file)) or is_stale(found[0])}


def _baselines(repo: Repo) -> list[str]:
    queue = repo.experiments.celery_queue
    waiting = [*queue.iter_queued(), *queue.iter_active(), *(failed.entry for failed in queue.iter_failed())]
    commits = {ref.baseline_sha for ref in exp_refs(repo.scm)} | {entry.baseline_rev for entry in waiting}
    return sorted(commit for commit in commits if commit)


def _name(held: ExpRange) -> str:
    return held.name or held.revs[0].name or ""


def _experiment(baseline: str, held: ExpRange) -> DvcExperiment:
    newest = held.revs[0]
    data = newest.data
    read = {file: content["data"] for file, content in (data.params if data else {}).items() if "data" in content}
    return DvcExperiment(
        name=_name(held),
        state=held.executor.state if held.executor else "success",
        commit=newest.rev,
        baseline=baseline,
        ended=data.timestamp.isoformat() if data and data.timestamp else "",
        params=read,
    )


@dataclass(frozen=True)
class Reach:
    """What a run up to some stages reads and writes."""

    params: set[str]
    """Dotted keys of params.yaml, also of `${key}` in dvc.yaml; empty text where a stage reads all of it."""
    outs: set[Path]
    targets: tuple[str, ...] = ()

    def require_written(self, place: Path, files: Iterable[str]) -> None:
        """Raise UserError, for the file at `place`, if one of these files is written by no stage of such a run."""
        for file in map(Path, sorted(files)):
            if not any(file == out or out in file.parents for out in self.outs):
                raise UserError(
                    f"{place}: {file}: {', '.join(self.targets)} and the stages before do not write it; there are "
                    f"{', '.join(sorted(map(str, self.outs)))}"
                )


def reach(targets: Collection[str]) -> Reach:
    """That of the target stages and those that they need. Raises UserError on an unknown stage."""
    with open_repo() as repo:
        try:
            stages = [stage for target in targets for stage in repo.stage.collect(target, with_deps=True)]
        except DvcException as error:
            raise UserError(f"targets: {error}") from None
        own = [dep for stage in stages for dep in stage.deps if isinstance(dep, ParamsDependency)]
        tracked = [dep.params or [""] for dep in own if Path(dep.fs_path).name == str(PARAMS_FILE)]
        tracked.append(keys_in_templates(stages))
        outs = {Path(out.fs_path).relative_to(repo.root_dir) for stage in stages for out in stage.outs}
        return Reach({key for keys in tracked for key in keys}, outs, tuple(targets))
