"""The model that `train.start_from` names: a local folder, or a commit of a Hub repository (`owner/name@COMMIT`).

A branch can move, so only a commit says which weights were continued. Weights are read from safetensors alone, and no
code of the model's is run.
"""

import hashlib
import re
from pathlib import Path

from stages.runtime.entry import UserError
from stages.runtime.hashes import file_sha256
from stages.runtime.hub import snapshot

HUB_COMMIT = re.compile(r"(?P<repository>[\w.-]+(/[\w.-]+)?)@(?P<commit>[0-9a-f]{40})")
FILES = ["config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"]


def source_folder(start_from: str, download: bool = False) -> Path:
    """The folder with the model's files; a Hub commit is downloaded first, or must have been.

    Raises UserError where there is no such model or access is refused, UnavailableError where the Hub does not answer.
    """
    folder, what = Path(start_from), f"params.yaml: train.start_from = {start_from!r}"
    if commit := HUB_COMMIT.fullmatch(start_from):
        folder = snapshot(what, commit["repository"], commit["commit"], FILES, download=download)
    elif not folder.is_dir():
        raise UserError(
            f"{what}: no such folder; a model of the Hub is named owner/name@COMMIT, with all 40 digits of the commit"
        )
    if not list(folder.glob("*.safetensors")):
        raise UserError(f"{what}: holds no *.safetensors; pickled weights are not loaded, as they can run code")
    return folder


def source_sha256(start_from: str) -> str:
    """What identifies the model's content: a Hub commit, or the sha256 of the folder's files."""
    if commit := HUB_COMMIT.fullmatch(start_from):
        return commit["commit"]
    folder = source_folder(start_from)
    files = sorted(file for pattern in FILES for file in folder.glob(pattern))
    lines = [f"{file.name} {file_sha256(file)}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
