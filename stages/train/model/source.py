"""The model that `train.start_from` names: a local folder, or a commit of a Hub repository (`owner/name@COMMIT`).

A branch can move, so only a commit says which weights were continued. Weights are read from safetensors alone, and no
code of the model's is run.
"""

import hashlib
import re
from pathlib import Path

from httpx2 import HTTPError
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from stages.runtime.entry import UnavailableError, UserError
from stages.runtime.hashes import file_sha256

HUB_COMMIT = re.compile(r"(?P<repository>[\w.-]+(/[\w.-]+)?)@(?P<commit>[0-9a-f]{40})")
FILES = ["config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"]


def source_folder(start_from: str, download: bool = False) -> Path:
    """The folder with the model's files; a Hub commit is downloaded first, or must have been.

    Raises UserError where there is no such model or access is refused, UnavailableError where the Hub does not answer.
    """
    folder = Path(start_from)
    if commit := HUB_COMMIT.fullmatch(start_from):
        folder = _snapshot(start_from, commit["repository"], commit["commit"], download)
    elif not folder.is_dir():
        raise _refusal(
            start_from,
            "no such folder; a model of the Hub is named owner/name@COMMIT, with all 40 digits of the commit",
        )
    if not list(folder.glob("*.safetensors")):
        raise _refusal(start_from, "holds no *.safetensors; pickled weights are not loaded, as they can run code")
    return folder


def source_sha256(start_from: str) -> str:
    """What identifies the model's content: a Hub commit, or the sha256 of the folder's files."""
    if commit := HUB_COMMIT.fullmatch(start_from):
        return commit["commit"]
    folder = source_folder(start_from)
    files = sorted(file for pattern in FILES for file in folder.glob(pattern))
    lines = [f"{file.name} {file_sha256(file)}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _snapshot(start_from: str, repository: str, commit: str, download: bool) -> Path:
    try:
        return Path(snapshot_download(repository, revision=commit, allow_patterns=FILES, local_files_only=not download))
    except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise _refusal(start_from, f"not found, or your HF_TOKEN has no access: {_first_line(error)}") from None
    except (OSError, HTTPError) as error:  # OSError: LocalEntryNotFoundError, nothing cached and the Hub failed
        answer = error.__cause__ if isinstance(error.__cause__, HfHubHTTPError) else error
        if isinstance(answer, HfHubHTTPError) and answer.response.status_code in (401, 403):
            raise _refusal(start_from, f"access is refused: {_first_line(answer)}") from None
        raise UnavailableError(
            f"params.yaml: train.start_from = {start_from!r}: the Hub does not answer: {_first_line(answer)}"
        ) from None


def _refusal(start_from: str, reason: str) -> UserError:
    return UserError(f"params.yaml: train.start_from = {start_from!r}: {reason}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
