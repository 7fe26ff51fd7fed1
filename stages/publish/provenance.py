"""Observes what a revision is made from, as far as this machine can tell.

Not a dependency of the stage: a commit that changes no input publishes nothing anew. No timestamps and no paths of this
machine; the order of everything is fixed.
"""

import os
import platform
import subprocess
from pathlib import Path

import yaml

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.provenance import GitState, Provenance
from stages.publish import inputs, lock
from stages.publish.params import PublishParams
from stages.publish.revision import Revision

VERSIONS = Path("versions.yaml")

CHANGED_SHOWN = 100
"""The most files that differ from the commit and are named."""


def observe(revision: Revision, params: PublishParams) -> Provenance:
    """Everything about a revision."""
    stages = lock.read_lock()
    paths = [path.as_posix() for path in inputs.ALL]
    written = [*lock.output_paths(stages), lock.LOCK.as_posix(), inputs.TRAIN_SPEED.as_posix()]
    return Provenance(
        revision=revision.name,
        files=revision.sha256,
        weights_sha256=weights_sha256(),
        git=observe_git(written),
        pipeline=lock.ancestors(stages, paths),
        not_in_lock=lock.not_in_lock(stages, paths),
        publish=params.model_dump(mode="json"),
        versions=read_versions(VERSIONS),
        training=inputs.training_facts(),
        published_from={
            "python": platform.python_version(),
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        },
    )


def read_versions(path: Path) -> dict[str, str]:
    """Library -> version, as text: 26.3 is not a number."""
    versions: dict[str, str] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    return versions


def observe_git(written: list[str]) -> GitState | None:
    """The commit, and whether code or parameters differ from it; None outside a repository.

    The paths in `written` are results of the pipeline, which do not count as changes.
    """
    commit = run_git("rev-parse", "HEAD")
    status = run_git("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all")
    if commit is None or status is None:
        return None
    entries = [(entry[:2], entry[3:]) for entry in status.split("\0") if entry]
    entries = [entry for entry in entries if not any(lock.overlaps(entry[1], out) for out in written)]
    changed = sorted(path for state, path in entries if state != "??")
    return GitState(
        commit=commit.strip(),
        dirty=bool(entries),
        changed=changed[:CHANGED_SHOWN],
        untracked=len(entries) - len(changed),
    )


def run_git(*arguments: str) -> str | None:
    """What git prints; None if it fails or is not installed."""
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout
