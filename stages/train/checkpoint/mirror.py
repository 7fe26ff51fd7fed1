"""A second home for checkpoints, for machines that vanish with their disks: any fsspec URL, `PARROTFLOW_MIRROR`.

A checkpoint's files go up first and its manifest last, so that one that has a manifest is whole. fsspec is imported
only where a mirror is asked for.
"""

import errno
import importlib
import os
from pathlib import Path
from typing import Any

from stages.runtime.entry import UnavailableError, UserError

VARIABLE = "PARROTFLOW_MIRROR"
MANIFEST = "manifest.json"


class Mirror:
    """Copies of the newest checkpoint of one run; does nothing where no URL is set."""

    def __init__(self, fingerprint: str) -> None:
        self.url = os.environ.get(VARIABLE, "").rstrip("/")
        self.fingerprint = fingerprint
        self._files: Any = None
        self._root = ""
        if self.url:
            try:
                fsspec = importlib.import_module("fsspec")
                self._files, self._root = fsspec.core.url_to_fs(self.url)
            except (ImportError, ValueError) as error:
                raise UserError(f"{VARIABLE}={self.url}: cannot be used: {error}") from None

    def push(self, place: Path) -> None:
        """Copy a checkpoint up, then remove the others there. Where that fails, the run goes on without."""
        if self._files is None:
            return
        try:
            self._push(place)
        except Exception as error:  # each file system fails in its own way
            print(f"warning: {VARIABLE}={self.url}: {place.name} is not there ({error}); the run goes on", flush=True)

    def _push(self, place: Path) -> None:
        run = f"{self._root}/{self.fingerprint}"
        self._files.makedirs(f"{run}/{place.name}", exist_ok=True)
        for file in sorted(place.iterdir(), key=lambda file: (file.name == MANIFEST, file.name)):
            self._files.put_file(str(file), f"{run}/{place.name}/{file.name}")
        for old in self._names(run):
            if old != place.name:
                self._files.rm(f"{run}/{old}", recursive=True)

    def pull(self, folder: Path) -> None:
        """Copy the newest whole checkpoint down into `folder`. Raises UnavailableError where that cannot be read."""
        if self._files is None:
            return
        try:
            self._pull(folder)
        except Exception as error:  # each file system fails in its own way
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UnavailableError(
                f"{VARIABLE}={self.url}: cannot be read: {error}; without it the run would start afresh: "
                f"run the same command again when it answers, or unset {VARIABLE}"
            ) from None

    def _pull(self, folder: Path) -> None:
        run = f"{self._root}/{self.fingerprint}"
        for name in reversed(self._names(run)):
            if not self._files.exists(f"{run}/{name}/{MANIFEST}"):
                continue
            partial = folder / f"{name}.partial"
            partial.mkdir(parents=True, exist_ok=True)
            for path in self._files.ls(f"{run}/{name}", detail=False):
                self._files.get_file(path, str(partial / path.rsplit("/", 1)[-1]))
            partial.rename(folder / name)
            return

    def _names(self, run: str) -> list[str]:
        self._files.invalidate_cache()
        if not self._files.exists(run):
            return []
        names = (path.rstrip("/").rsplit("/", 1)[-1] for path in self._files.ls(run, detail=False))
        return sorted(name for name in names if name.startswith("step-"))
