"""Forges published revisions: edits files and then writes the new hashes wherever a forger can write them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.flows.reproduce.published import seal


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

    def seal(self) -> None:
        """Write the index over the files as they are: the hashes and the name."""
        seal(self.folder)


def copy_of(revision: Path, folder: Path) -> Forger:
    """A forger's copy of a revision, whose files can be written."""
    shutil.copytree(revision, folder)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return Forger(folder)
