"""Files among the deps that DVC cannot hash. DVC itself ends in a traceback over them, or waits for ever for a pipe."""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from dvc.repo import Repo
from dvc.stage import PipelineStage

from stages.runtime.entry import UserError

NAMED_AT_MOST = 10


def check_deps(repo: Repo, stages: Iterable[PipelineStage]) -> None:
    """Raise UserError that names them and says what to do."""
    own_outs = {out.fs_path for stage in repo.index.stages for out in stage.outs}
    deps = {dep.fs_path for stage in stages for dep in stage.deps if dep.protocol == "local"}
    found = [line for path in sorted(deps - own_outs) for line in _unhashable(repo, path)]
    if found:
        more = f" and {len(found) - NAMED_AT_MOST} more" if len(found) > NAMED_AT_MOST else ""
        raise UserError(
            f"DVC cannot read {', '.join(found[:NAMED_AT_MOST])}{more}; "
            "remove or rename each, or add its path to .dvcignore"
        )


def _unhashable(repo: Repo, path: str) -> Iterator[str]:
    for folder, folders, files in repo.dvcignore.walk(repo.fs, path):
        for name in sorted([*folders, *files]):
            file = Path(folder, name)
            shown = repr(os.path.relpath(file, repo.root_dir))
            if name != name.encode("utf-8", "replace").decode("utf-8"):
                yield f"{shown} (its name is not UTF-8)"
            elif not file.exists():
                yield f"{shown} (a link to nowhere)"
            elif not stat.S_ISREG(mode := file.stat().st_mode) and not stat.S_ISDIR(mode):
                yield f"{shown} (not a regular file)"
