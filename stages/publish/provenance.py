"""Where a published model comes from, as far as this machine can tell: code, parameters, data, versions, hardware.

Observed when a revision is published, and no dependency of the stage: a commit that changes no input publishes nothing
anew. No timestamps and no paths of this machine; the order of everything is fixed.
"""

import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML

from stages.formats.reports import read_json
from stages.publish.revision import Revision

LOCK = Path("dvc.lock")
VERSIONS = Path("versions.yaml")
TRAINING_SPEED = Path("reports/train_speed.json")

CHANGED_SHOWN = 100
"""Files that differ from the commit are named up to so many."""


def observe(revision: Revision, inputs: Iterable[Path]) -> dict[str, Any]:
    """Everything, as plain values."""
    stages = read_lock(LOCK)
    paths = [path.as_posix() for path in inputs]
    return {
        "revision": revision.name,
        "weights_sha256": {path: sha for path, sha in revision.sha256.items() if path.endswith(".safetensors")},
        "git": observe_git([*outs(stages), LOCK.as_posix(), TRAINING_SPEED.as_posix()]),
        "pipeline": ancestors(stages, paths),
        "not_in_lock": made_by_none(stages, paths),
        "versions": read_versions(VERSIONS),
        "training": read_json(TRAINING_SPEED) if TRAINING_SPEED.exists() else None,
        "published_from": {
            "python": platform.python_version(),
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        },
    }


def read_lock(path: Path) -> dict[str, dict[str, Any]]:
    """Stage -> what dvc.lock says of it; empty where nothing was locked yet."""
    if not path.exists():
        return {}
    # YAML 1.2 as DVC writes it, in which 1e-05 is a number.
    stages: dict[str, dict[str, Any]] = YAML(typ="safe", pure=True).load(path).get("stages", {})
    return stages


def read_versions(path: Path) -> dict[str, str]:
    """Library -> version, each as it stands there: 26.3 is no number."""
    versions: dict[str, str] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    return versions


def made_by_none(stages: dict[str, dict[str, Any]], inputs: Iterable[str]) -> list[str]:
    """The inputs that no stage in dvc.lock has made."""
    known = outs(stages)
    return [path for path in inputs if not any(lies_in(path, out) for out in known)]


def outs(stages: dict[str, dict[str, Any]]) -> list[str]:
    """The paths that the pipeline itself writes."""
    return [out["path"] for stage in stages.values() for out in stage.get("outs", [])]


def ancestors(stages: dict[str, dict[str, Any]], inputs: Iterable[str]) -> list[dict[str, Any]]:
    """The stages that the inputs come from, each after those that it needs; command, params, deps and outs of each."""
    ordered: dict[str, dict[str, Any]] = {}

    def add(paths: Iterable[str]) -> None:
        for name in sorted(stages):
            if name not in ordered and any(
                lies_in(path, out["path"]) for path in paths for out in stages[name]["outs"]
            ):
                add([dep["path"] for dep in stages[name].get("deps", [])])
                ordered[name] = {"stage": name} | stages[name]

    add(list(inputs))
    return list(ordered.values())


def lies_in(path: str, place: str) -> bool:
    """Whether one is the other, or lies in it."""
    return path == place or path.startswith(f"{place}/") or place.startswith(f"{path}/")


def observe_git(written: list[str]) -> dict[str, Any] | None:
    """The commit, and whether code or parameters differ from it; None outside a repository."""
    commit = run_git("rev-parse", "HEAD")
    status = run_git("status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all")
    if commit is None or status is None:
        return None
    changed = sorted(entry[3:] for entry in status.split("\0") if entry)
    # What the pipeline has written itself is its result, not a change to what it was computed from.
    changed = [path for path in changed if not any(lies_in(path, out) for out in written)]
    return {"commit": commit.strip(), "dirty": bool(changed), "changed": changed[:CHANGED_SHOWN]}


def run_git(*arguments: str) -> str | None:
    """What git prints; None if it fails or is not there."""
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout
