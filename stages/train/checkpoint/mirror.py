"""A copy of the newest checkpoint, for machines that lose their disks: any fsspec URL, `PARROTFLOW_MIRROR`.

    URL/FINGERPRINT/
        step-00000100/           the newest checkpoint, and those of `export_steps`

It is read only if there is no checkpoint here. Files are uploaded first and the manifest last, so that a checkpoint
with a manifest is complete. A thread uploads, and nothing waits for it for long. fsspec is imported only if a mirror is
set.
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
"""How long a run that ends waits for the upload of its last checkpoint."""


class Mirror:
    """Copies of the checkpoints of one run; does nothing if no URL is set."""

    def __init__(self, fingerprint: str) -> None:
        """Raises UserError if the URL holds a password or its protocol is unknown."""
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
        """Begin to upload those that are not there yet, and the last one in any case; older ones there are removed.

        If an upload is under way, these are next, in place of others that are waiting.
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
        """Download the complete checkpoints to `folder`. If that fails, the run continues without."""
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
        there, newest = self._complete(), checkpoints[-1]
        for path in checkpoints:
            if path.name not in there or path == newest:
                self._files.makedirs(f"{self._run}/{path.name}", exist_ok=True)
                for file in sorted(path.iterdir(), key=lambda file: (file.name == CHECKPOINT_MANIFEST, file.name)):
                    self._files.put_file(str(file), f"{self._run}/{path.name}/{file.name}")
        # A later one stays: the mirror could not be read when this run started.
        for old in self._names("step-*") - {path.name for path in checkpoints}:
            if old < newest.name:
                self._files.rm(f"{self._run}/{old}", recursive=True)

    def _complete(self) -> list[str]:
        """The names of the checkpoints there that have a manifest."""
        return sorted(self._names(f"step-*/{CHECKPOINT_MANIFEST}"))

    def _names(self, pattern: str) -> set[str]:
        """The names of the checkpoints with something there of this pattern."""
        self._files.invalidate_cache()
        found = self._files.glob(f"{self._run}/{pattern}")
        return {path[len(self._run) + 1 :].split("/")[0] for path in found}

    def _warn(self, text: str) -> None:
        print(f"warning: {MIRROR}={self.url}: {text}", flush=True)
