"""What stages read and write, as data, and where a DVC experiment is.

DVC's templating (`${section.key}` in dvc.yaml) counts too, which need not be listed under `params`. It is read from the
text of dvc.yaml: DVC's own list, `stage.tracked_vars`, lacks sections that a command unpacks.
"""

import json
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dvc.api import DVCFileSystem
from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DvcException
from dvc.stage import PipelineStage

from flows.dvc_repo.internals import open_repo
from stages.runtime.entry import UserError
from stages.runtime.section import PARAMS_FILE

_KEY = re.compile(r"\$\{\s*([\w.-]+)")

CHANGES_NO_RESULT = ("meta", "desc")
"""Of a stage in dvc.yaml."""


def experiment_ref(baseline: str, name: str) -> str:
    """The reference of git that leads to an experiment, which DVC names by the commit that it was started from."""
    return f"refs/exps/{baseline[:2]}/{baseline[2:]}/{name}"


def has_commit(commit: str, folder: Path = Path()) -> bool:
    """Whether git has a commit in a folder's repository. A clone has no DVC experiment before `dvc exp pull`."""
    command = ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def texts_at(commit: str, paths: Iterable[str]) -> dict[str, str]:
    """The text of each file at a commit, from git, DVC's cache or its remote; one that is not there is left out."""
    files = DVCFileSystem(url=".", rev=commit)
    texts: dict[str, str] = {}
    for path in paths:
        with suppress(FileNotFoundError):  # `exists` would also say no where a remote does not answer
            texts[path] = files.read_text(path, encoding="utf-8", errors="replace")
    return texts


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


def keys_in_templates(stages: Iterable[Any]) -> set[str]:
    """The dotted keys that stages have as `${key}`, of params.yaml or of another file of their `vars`."""
    return {key for stage in _of_pipelines(stages) for key in _KEY.findall(json.dumps(_definition(stage)))}


def files_of_templates(stages: Iterable[Any]) -> set[Path]:
    """The files that stages, or their whole dvc.yaml, name under `vars`."""
    found: set[Path] = set()
    for stage in _of_pipelines(stages):
        whole = _content(stage).get("vars") or ()
        definition = _definition(stage)
        own = definition.get("do", definition).get("vars") or ()
        for folder, entries in ((Path(stage.path).parent, whole), (Path(stage.wdir), own)):
            found |= {folder / entry.partition(":")[0] for entry in entries if isinstance(entry, str)}
    return found


def _of_pipelines(stages: Iterable[Any]) -> Iterator[PipelineStage]:
    return (stage for stage in stages if isinstance(stage, PipelineStage))


def _definition(stage: PipelineStage) -> dict[str, Any]:
    written = _content(stage)["stages"][str(stage.name).partition("@")[0]]
    return {key: value for key, value in written.items() if key not in CHANGES_NO_RESULT}


def _content(stage: PipelineStage) -> dict[str, Any]:
    return yaml.safe_load(Path(stage.path).read_text(encoding="utf-8")) or {}
