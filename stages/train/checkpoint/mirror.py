"""A second copy of the newest checkpoint, for machines that lose their disks: any fsspec URL, `PARROTFLOW_MIRROR`.

Files are uploaded first and the manifest last, so that a checkpoint with a manifest is complete. fsspec is imported
only if a mirror is set. Of what comes back the numbers are trusted, code is not (stages.train.checkpoint.restricted).
"""

import errno
import importlib
import os
from pathlib import Path
from typing import Any

from stages.runtime.entry import UnavailableError, UserError
from stages.train.checkpoint.manifest import MANIFEST

VARIABLE = "PARROTFLOW_MIRROR"
CREDENTIAL_ERRORS = {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"}
"""Of botocore and google.auth, which are not imported here."""


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

    def push(self, path: Path) -> None:
        """Upload a checkpoint, then remove the others there. If that fails, the run continues without."""
        if self._files is None:
            return
        try:
            self._push(path)
        except Exception as error:  # each file system fails in its own way
            print(
                f"warning: {VARIABLE}={self.url}: {path.name} was not uploaded ({error}); the run continues", flush=True
            )

    def _push(self, path: Path) -> None:
        run = f"{self._root}/{self.fingerprint}"
        self._files.makedirs(f"{run}/{path.name}", exist_ok=True)
        for file in sorted(path.iterdir(), key=lambda file: (file.name == MANIFEST, file.name)):
            self._files.put_file(str(file), f"{run}/{path.name}/{file.name}")
        for old in self._names(run):
            if old != path.name:
                self._files.rm(f"{run}/{old}", recursive=True)

    def pull(self, folder: Path) -> None:
        """Download the newest complete checkpoint into `folder`.

        Raises UserError where the credentials are refused, UnavailableError where the mirror cannot be read otherwise.
        """
        if self._files is None:
            return
        try:
            self._pull(folder)
        except Exception as error:  # each file system fails in its own way
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            if isinstance(error, PermissionError) or type(error).__name__ in CREDENTIAL_ERRORS:
                raise UserError(f"{VARIABLE}={self.url}: the credentials are refused: {error}") from None
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
