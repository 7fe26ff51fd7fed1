"""Forges published revisions: edits files and then writes the new hashes wherever a forger can write them."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.reproduce.revision import project_path
from stages.formats.model_folder import MODEL
from stages.formats.revision.lock import read_recorded_lock
from stages.formats.revision.provenance import (
    PROVENANCE,
    RECORDED_LOCK,
    Provenance,
    is_shipped,
)
from stages.runtime.atomic import file_md5
from tests.flows.reproduce.published import seal


def folder_md5(files: dict[str, str]) -> str:
    """DVC's name for a folder, from its files' md5 by their paths in it."""
    listing = [{"md5": files[path], "relpath": path} for path in sorted(files)]
    return f"{hashlib.md5(json.dumps(listing, sort_keys=True).encode()).hexdigest()}.dir"


@dataclass
class Forger:
    """Works on one's own copy of a revision."""

    folder: Path

    def json(self, path: str, edit: Callable[[Any], object]) -> None:
        """Edit a JSON file."""
        values = json.loads((self.folder / path).read_bytes())
        edit(values)
        self.add(path, json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

    def text(self, path: str, old: str, new: str) -> None:
        """Replace a text everywhere in a file."""
        text = (self.folder / path).read_text(encoding="utf-8")
        assert old in text, f"{old} is not in {path}"
        self.add(path, text.replace(old, new))

    def add(self, path: str, text: str) -> None:
        """Write a file."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).unlink(missing_ok=True)
        (self.folder / path).write_text(text, encoding="utf-8")

    def seal(self, *, lock: bool = False) -> None:
        """Write the index over the files as they are: the hashes and the name. `lock`: also all hashes in dvc.lock."""
        if lock:
            self.rewrite_lock(Provenance.read(self.folder / PROVENANCE))
        seal(self.folder)

    def rewrite_lock(self, provenance: Provenance) -> None:
        """Put the new hashes of all outputs into dvc.lock, where they were made and where they were read."""
        text = (self.folder / RECORDED_LOCK).read_text(encoding="utf-8")
        model = {path.name: file_md5(path) for path in self.folder.iterdir() if is_shipped(path.name)}
        for entry in read_recorded_lock(self.folder).values():
            for out in entry.get("outs", []):
                if out["path"] == MODEL.as_posix():
                    text = text.replace(out["md5"], folder_md5(model))
                for path in provenance.files:
                    if project_path(path) == out["path"]:
                        text = text.replace(out["md5"], file_md5(self.folder / path))
        self.add(RECORDED_LOCK, text)


def copy_of(revision: Path, folder: Path) -> Forger:
    """A forger's copy of a revision, whose files can be written."""
    shutil.copytree(revision, folder)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return Forger(folder)
