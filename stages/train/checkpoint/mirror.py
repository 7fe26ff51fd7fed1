"""A copy of the newest checkpoint at any fsspec URL (`PARROTFLOW_MIRROR`), for machines that lose their disks.

    URL/FINGERPRINT/
        step-00000100/           the newest checkpoint, and those of `export_steps`

It is read only if no checkpoint is on the disk. A thread uploads a checkpoint's files, the manifest last, so that a
checkpoint with a manifest is complete. fsspec is imported only if a mirror is set.
"""

import importlib
import os
import shutil
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from stages.runtime.credentials import refuse_credentials
from stages.runtime.errors import UserError
from stages.train.checkpoint.manifest import CHECKPOINT_MANIFEST, fault

MIRROR = "PARROTFLOW_MIRROR"

LAST_UPLOAD_SECONDS = 20.0
"""How long the end of a run waits for its last upload."""


class Mirror:
    """Copies of the checkpoints of one run; does nothing if no URL is set."""

    def __init__(self, fingerprint: str) -> None:
        """Raises UserError if the URL contains a password or its protocol is unknown."""
        self.url = os.environ.get(MIRROR, "").rstrip("/")
        self._files: Any = None
        self._lock = Lock()
        self._waiting: list[Path] = []
        self._thread: Thread | None = None
        refuse_credentials(MIRROR, self.url)
        if self.url:
            try:
                fsspec = importlib.import_module("fsspec")
                self._files, root = fsspec.core.url_to_fs(self.url)
            except (ImportError, ValueError) as error:
                raise UserError(f"{MIRROR}={self.url}: cannot be used: {error}") from None
            self._run = f"{root}/{fingerprint}"

    def push(self, checkpoints: list[Path]) -> None:
        """Begin to upload missing checkpoints and, in any case, the last one; then remove older ones.

        During an upload, these replace the checkpoints that wait for the next.
        """
        if self._files is None:
            return
        with self._lock:
            self._waiting = checkpoints
            if self._thread is None:
                self._thread = Thread(target=self._upload_all, daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Wait a moment for the last upload."""
        if (thread := self._thread) is not None:
            thread.join(LAST_UPLOAD_SECONDS)
            if thread.is_alive():
                self._warn(f"the last checkpoint was not uploaded within {LAST_UPLOAD_SECONDS:.0f} s; the run ends")

    def pull(self, folder: Path) -> None:
        """Download the complete checkpoints to `folder`; if that fails, print a warning."""
        if self._files is None:
            return
        partial = folder / "mirror.partial"
        try:
            for name in self._complete():
                partial.mkdir()
                for file in self._files.ls(f"{self._run}/{name}", detail=False):
                    self._files.get_file(file, str(partial / file.rsplit("/", 1)[-1]))
                if problem := fault(partial):
                    self._warn(f"{name} is skipped: {problem}")
                    shutil.rmtree(partial)
                else:
                    partial.rename(folder / name)
        except Exception as error:  # each file system fails in its own way
            shutil.rmtree(partial, ignore_errors=True)
            self._warn(f"cannot be read ({error}); the run continues without it")

    def _upload_all(self) -> None:
        while True:
            with self._lock:
                checkpoints, self._waiting = self._waiting, []
                if not checkpoints:
                    self._thread = None
                    return
            try:
                self._upload(checkpoints)
            except Exception as error:  # each file system fails in its own way
                self._warn(f"{checkpoints[-1].name} was not uploaded ({error}); the run continues")

    def _upload(self, checkpoints: list[Path]) -> None:
        uploaded, newest = self._complete(), checkpoints[-1]
        for path in checkpoints:
            if path.name not in uploaded or path == newest:
                self._files.makedirs(f"{self._run}/{path.name}", exist_ok=True)
                for file in sorted(path.iterdir(), key=lambda file: (file.name == CHECKPOINT_MANIFEST, file.name)):
                    self._files.put_file(str(file), f"{self._run}/{path.name}/{file.name}")
        # Keep later checkpoints: they exist if the mirror could not be read when this run started.
        for old in self._names("step-*") - {path.name for path in checkpoints}:
            if old < newest.name:
                self._files.rm(f"{self._run}/{old}", recursive=True)

    def _complete(self) -> list[str]:
        """Names of the mirrored checkpoints that have a manifest."""
        return sorted(self._names(f"step-*/{CHECKPOINT_MANIFEST}"))

    def _names(self, pattern: str) -> set[str]:
        """Names of the mirrored checkpoints that match a pattern."""
        self._files.invalidate_cache()
        return {path[len(self._run) + 1 :].split("/")[0] for path in self._files.glob(f"{self._run}/{pattern}")}

    def _warn(self, text: str) -> None:
        print(f"warning: {MIRROR}={self.url}: {text}", flush=True)
