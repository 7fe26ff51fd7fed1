"""Small repositories for tests of the record."""

import subprocess
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from stages.publish.record import hashes_of, name_of

IDENTITY = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]


def git(*arguments: str) -> str:
    result = subprocess.run(["git", *IDENTITY, *arguments], check=True, capture_output=True, text=True)
    return result.stdout.strip()


def commit_all() -> None:
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "first")


def pretend_to_push(url: str = "https://someone:token@example.com/owner/name.git") -> None:
    """A remote that has the commit, as far as this clone knows."""
    git("remote", "add", "origin", url)
    git("update-ref", "refs/remotes/origin/main", "HEAD")


def write(files: dict[str, str]) -> None:
    for path, text in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)


def md5_of_dvc(path: Path) -> str:
    """What DVC names a file or folder by."""
    return name_of(path, hashes_of(path))


def entry(path: str) -> dict[str, Any]:
    """What dvc.lock says of a file or folder as it is now."""
    size = sum(file.stat().st_size for file in [Path(path), *Path(path).rglob("*")] if file.is_file())
    folder = {"nfiles": sum(file.is_file() for file in Path(path).rglob("*"))} if Path(path).is_dir() else {}
    return {"path": path, "hash": "md5", "md5": md5_of_dvc(Path(path)), "size": size, **folder}


def stage(deps: list[str], outs: list[str] | None = None, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """An entry of dvc.lock for a stage that has just run."""
    found: dict[str, Any] = {"cmd": "python train.py", "deps": [entry(path) for path in deps]}
    if params:
        found["params"] = params
    return found | {"outs": [entry(path) for path in outs or []]}


def write_lock(stages: dict[str, Any]) -> None:
    with Path("dvc.lock").open("w") as file:
        YAML(typ="safe").dump({"schema": "2.0", "stages": stages}, file)
