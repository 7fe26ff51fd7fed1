"""A second copy of the newest checkpoint, for machines that lose their disks: any fsspec URL, `PARROTFLOW_MIRROR`.

    URL/FINGERPRINT/
        identity.json            what the run is
        exports/SHA256           a file of a model of `export_steps`; manifests name them
        step-00000100/           the newest checkpoint

Files are uploaded first and the manifest last, so that a checkpoint with a manifest is complete. fsspec is imported
only if a mirror is set. Of what comes back the numbers are trusted, code is not (stages.train.checkpoint.manifest).
"""

import errno
import importlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stages.runtime.atomic import file_sha256
from stages.runtime.credentials import refuse_credentials
from stages.runtime.entry import UnavailableError, UserError
from stages.train.checkpoint.manifest import CHECKPOINT_MANIFEST, IDENTITY, CheckpointManifest, fault, read_manifest

MIRROR = "PARROTFLOW_MIRROR"
CREDENTIAL_ERRORS = {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"}
"""Of botocore and google.auth, which are not imported here."""


class Mirror:
    """Copies of the newest checkpoint of one run; does nothing where no URL is set."""

    def __init__(self, fingerprint: str) -> None:
        self.url = os.environ.get(MIRROR, "").rstrip("/")
        self._files: Any = None
        refuse_credentials(MIRROR, self.url)
        if self.url:
            try:
                fsspec = importlib.import_module("fsspec")
                self._files, root = fsspec.core.url_to_fs(self.url)
            except (ImportError, ValueError) as error:
                raise UserError(f"{MIRROR}={self.url}: cannot be used: {error}") from None
            self._root, self._run = root, f"{root}/{fingerprint}"

    def push(self, path: Path, exports: Mapping[str, Path]) -> None:
        """Upload a checkpoint, then remove the earlier ones there. If that fails, the run continues without.

        `exports`: by their hashes, the files of models that the checkpoint names; those that are there are not sent
        again, and others go with the checkpoints that named them.

        Later ones stay, as they do in the run's folder: of a run that had come further, or of one of another length.
        """
        if self._files is None:
            return
        try:
            self._files.makedirs(f"{self._run}/{path.name}", exist_ok=True)
            self._files.makedirs(f"{self._run}/exports", exist_ok=True)
            self._files.invalidate_cache()
            belonging = {f"exports/{sha256}": file for sha256, file in exports.items()}
            for name, file in (belonging | {IDENTITY: path.with_name(IDENTITY)}).items():
                there = f"{self._run}/{name}"
                if not self._files.exists(there) or self._files.size(there) != file.stat().st_size:
                    self._files.put_file(str(file), there)
            for file in sorted(path.iterdir(), key=lambda file: (file.name == CHECKPOINT_MANIFEST, file.name)):
                self._files.put_file(str(file), f"{self._run}/{path.name}/{file.name}")
            for old in self._names():
                if old < path.name:
                    self._files.rm(f"{self._run}/{old}", recursive=True)
            if self._names() == [path.name]:  # later ones may name other exports
                for there in self._files.glob(f"{self._run}/exports/*"):
                    if there.rsplit("/", 1)[-1] not in exports:
                        self._files.rm(there)
        except Exception as error:  # each file system fails in its own way
            print(
                f"warning: {MIRROR}={self.url}: {path.name} was not uploaded ({error}); the run continues", flush=True
            )

    def names(self) -> list[str]:
        """The names of the checkpoints there, complete or not. Raises as `pull` does."""
        if self._files is None:
            return []
        with self._reading():
            return self._names()

    def identities(self) -> dict[str, bytes]:
        """Fingerprint -> what that run is, of the runs there. Raises as `pull` does."""
        if self._files is None:
            return {}
        with self._reading():
            files = sorted(self._files.glob(f"{self._root}/*/{IDENTITY}"))
            contents = self._files.cat(files) if files else {}  # at once, where the file system can
            return {file.split("/")[-2]: content for file, content in contents.items()}

    def pull_export(self, files: Mapping[str, str], folder: Path) -> None:
        """Download a model of `export_steps`: the hashes of its files by their names. Raises as `pull` does."""
        with self._reading():
            for name, sha256 in files.items():
                file = folder / Path(name).name
                self._files.get_file(f"{self._run}/exports/{sha256}", str(file))
                if file_sha256(file) != sha256:
                    raise OSError(f"exports/{sha256} is damaged")

    def pull(
        self,
        path: Path,
        fits: Callable[[CheckpointManifest], bool],
        take: Callable[[CheckpointManifest], None] = lambda manifest: None,
    ) -> bool:
        """Download the checkpoint of this name to `path` if it is intact and fits, in place of what is there.

        `take` is called just before it is there, for what belongs to it.
        Raises UserError where the credentials are refused, UnavailableError where the mirror cannot be read otherwise.
        """
        there, fetched = f"{self._run}/{path.name}", path.with_name(f"{path.name}.partial")
        with self._reading():
            if not self._files.exists(f"{there}/{CHECKPOINT_MANIFEST}"):
                return False
            fetched.mkdir(parents=True, exist_ok=True)
            try:
                self._files.get_file(f"{there}/{CHECKPOINT_MANIFEST}", str(fetched / CHECKPOINT_MANIFEST))
                with suppress(ValidationError):  # which `fault` names
                    if not fits(read_manifest(fetched)):
                        return False  # before the rest is downloaded, which may be large
                    for file in self._files.ls(there, detail=False):
                        self._files.get_file(file, str(fetched / file.rsplit("/", 1)[-1]))
                if problem := fault(fetched):
                    print(f"warning: {there} is skipped: {problem}", flush=True)
                    return False
                take(read_manifest(fetched))
                shutil.rmtree(path, ignore_errors=True)
                fetched.rename(path)
                return True
            finally:
                shutil.rmtree(fetched, ignore_errors=True)

    def _names(self) -> list[str]:
        self._files.invalidate_cache()
        if not self._files.exists(self._run):
            return []
        names = (path.rstrip("/").rsplit("/", 1)[-1] for path in self._files.ls(self._run, detail=False))
        return sorted(name for name in names if name.startswith("step-"))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # each file system fails in its own way
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            if isinstance(error, PermissionError) or type(error).__name__ in CREDENTIAL_ERRORS:
                raise UserError(f"{MIRROR}={self.url}: the credentials are refused: {error}") from None
            raise UnavailableError(f"{MIRROR}={self.url}: cannot be read: {error}") from None
