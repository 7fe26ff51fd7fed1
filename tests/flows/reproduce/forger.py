"""Forges published revisions: edits files and then writes the new hashes wherever a forger can write them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.formats.evaluation.report import EVALUATE_RECEIPT, EVALUATE_REPORT
from stages.formats.model_folder import weights_sha256
from stages.formats.revision.consistency import project_path
from stages.formats.revision.lock import folder_md5, read_recorded_lock
from stages.formats.revision.provenance import (
    EVALUATION,
    EVALUATION_RECEIPT,
    NOT_INDEXED,
    PROVENANCE,
    RECORDED_LOCK,
    Provenance,
    is_shipped,
    record_path,
    revision_name,
)
from stages.runtime.atomic import file_md5, file_sha256

COPIES = {EVALUATION: record_path(EVALUATE_REPORT), EVALUATION_RECEIPT: record_path(EVALUATE_RECEIPT)}
"""Files that a revision holds twice."""


@dataclass
class Forger:
    """Works on one's own copy of a revision."""

    folder: Path

    def json(self, path: str, edit: Callable[[Any], object]) -> None:
        """Edit a JSON file, and its copy."""
        values = json.loads((self.folder / path).read_bytes())
        edit(values)
        for each in (path, COPIES.get(path, path)):
            self.add(each, json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

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

    def seal(self, *, listing: bool = False, lock: bool = False, **index: Any) -> None:
        """Write the index over the files as they are: the hashes, the name, the checksum.

        `listing`: also the index's listing of the model folder; `lock`: also all hashes in dvc.lock; `index`: values of
        the index.
        """
        provenance = self.provenance()
        folders = provenance.folders
        if listing or lock:
            model = {path.name: file_md5(path) for path in self.folder.iterdir() if self.is_of_the_model(path.name)}
            folders = folders | {"model": model}
        if lock:
            self.rewrite_lock(provenance, folders)
        paths = (path for path in self.folder.rglob("*") if path.is_file() and path.name not in NOT_INDEXED)
        files = {path.relative_to(self.folder).as_posix(): file_sha256(path) for path in sorted(paths)}
        changed = {
            "files": files,
            "revision": revision_name(files),
            "folders": folders,
            "weights_sha256": weights_sha256(self.folder),
            "pipeline": [{"stage": name} | entry for name, entry in read_recorded_lock(self.folder).items()],
        }
        (self.folder / PROVENANCE).unlink()
        provenance.model_copy(update=changed | index).write(self.folder / PROVENANCE)

    def provenance(self) -> Provenance:
        """The index as it is."""
        provenance = Provenance.find(self.folder / PROVENANCE)
        assert provenance is not None
        return provenance

    @staticmethod
    def is_of_the_model(path: str) -> bool:
        """Whether a file is one of the model folder."""
        return is_shipped(path) and path not in COPIES

    def rewrite_lock(self, provenance: Provenance, folders: dict[str, dict[str, str]]) -> None:
        """Put the new hashes of all outputs into dvc.lock, where they were made and where they were read."""
        text = (self.folder / RECORDED_LOCK).read_text(encoding="utf-8")
        for entry in read_recorded_lock(self.folder).values():
            for out in entry.get("outs", []):
                if out["path"] in folders:
                    text = text.replace(out["md5"], folder_md5(folders[out["path"]]))
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
