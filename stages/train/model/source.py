"""A model that training continues, `train.start_from`: a local folder, or a commit of a Hub repository.

The commit is named in full (`owner/name@COMMIT`): a branch can move, so only a commit says which weights were
continued. Weights are read from safetensors alone, and no code of the model's is run.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError
from stages.runtime.hub import snapshot
from stages.train.model.attention import one_line

HUB_COMMIT = re.compile(r"(?P<repository>[\w.-]+(/[\w.-]+)?)@(?P<commit>[0-9a-f]{40})")
SOURCE_FILES = ["config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"]


def source_folder(start_from: str, download: bool = False) -> Path:
    """The folder with the model's files; a Hub commit is downloaded first, or must have been.

    Raises UserError where there is no such model or access is refused, UnavailableError where the Hub does not answer.
    """
    folder, what = Path(start_from), f"params.yaml: train.start_from = {start_from!r}"
    if commit := HUB_COMMIT.fullmatch(start_from):
        folder = snapshot(what, commit["repository"], commit["commit"], SOURCE_FILES, download=download)
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
    files = sorted(file for pattern in SOURCE_FILES for file in folder.glob(pattern))
    lines = [f"{file.name} {file_sha256(file)}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def source_config(start_from: str) -> PreTrainedConfig:
    """Its config. Raises UserError where it cannot be loaded."""
    with _loading(start_from) as folder:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return config


def source_model(start_from: str) -> PreTrainedModel:
    """The model with its weights, in fp32. Raises UserError where it cannot be loaded."""
    with _loading(start_from) as folder:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
        )
    return model


@contextmanager
def _loading(start_from: str) -> Iterator[Path]:
    folder = source_folder(start_from)
    try:
        yield folder
    except Exception as error:  # Each architecture and each damaged file fails in a way of its own.
        raise UserError(
            f"params.yaml: train.start_from = {start_from!r}: cannot be loaded: {one_line(error)}"
        ) from None
