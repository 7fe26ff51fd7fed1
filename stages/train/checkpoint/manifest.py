"""The manifest of a checkpoint: its step, the sessions that led to it, and the sha256 of each file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from stages.formats.revision.execution import Session
from stages.runtime.atomic import atomic_write, file_sha256

CHECKPOINT_MANIFEST = "manifest.json"

IDENTITY = "identity.json"
"""The run's identity, in the folder of its checkpoints."""

EMPTY_SHA256 = hashlib.sha256().hexdigest()


class TrainingProgress(BaseModel):
    """A run's progress that is neither in the weights nor in the optimizer state."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    step: int
    """Optimizer steps done."""
    training_loss: float
    """Loss of the last step, nats per token."""


@dataclass(frozen=True)
class History:
    """The sessions of a run, and the hashes of all its checkpoints, including deleted ones.

    Every checkpoint stores it, so a run that continues restores the history of its checkpoint; steps that a killed run
    computed after that are never counted.
    """

    sessions: list[Session] = field(default_factory=list)
    contents: dict[int, str] = field(default_factory=dict)
    """Step -> `content_sha256` of its checkpoint. A step is missing if its checkpoint could not be written."""
    held_out: str = ""
    """Identifies the held-out sequences that the curves were measured on."""

    def sessions_until(self, step: int) -> list[Session]:
        """The sessions that computed the steps up to `step`; the last one ends there."""
        return [
            session.model_copy(update={"last_step": min(session.last_step, step)})
            for session in self.sessions
            if session.first_step <= step
        ]


class CheckpointManifest(TrainingProgress):
    """The content of manifest.json."""

    sha256: dict[str, str]
    """File name -> hash, in hex."""
    sessions: list[Session]
    """How the steps until this one were executed."""
    contents: dict[int, str]
    """Step of this and each earlier checkpoint -> `content_sha256`."""
    held_out: str
    """As in `History`."""


def write_manifest(checkpoint: Path, progress: TrainingProgress, history: History, sha256: dict[str, str]) -> None:
    """Write manifest.json, the last of a checkpoint's files."""
    sessions = history.sessions_until(progress.step)
    manifest = CheckpointManifest(
        **dict(progress), sha256=sha256, sessions=sessions, contents=history.contents, held_out=history.held_out
    )
    atomic_write(checkpoint / CHECKPOINT_MANIFEST, json.dumps(manifest.model_dump(mode="json"), indent=1))


def read_manifest(checkpoint: Path) -> CheckpointManifest:
    """A checkpoint's manifest. Raises OSError if it is missing, ValidationError if it is invalid."""
    return CheckpointManifest.model_validate_json((checkpoint / CHECKPOINT_MANIFEST).read_bytes())


def fault(checkpoint: Path) -> str:
    """Why a checkpoint cannot be used; empty if its files match its manifest."""
    try:
        manifest = read_manifest(checkpoint)
    except (OSError, ValidationError):
        return f"it has no complete {CHECKPOINT_MANIFEST}"
    for name in sorted({".metadata", *manifest.sha256}):
        file = checkpoint / name
        if not file.is_file() or file_sha256(file) != manifest.sha256.get(name):
            return f"{name} is missing or damaged"
    return ""


def content_sha256(sha256: Mapping[str, str]) -> str:
    """One hash for the state in a checkpoint, from those of its files. It depends on the number of shards.

    Empty files do not count: in data parallel training all processes but the main one write them.
    """
    shards = [sha256[name] for name in sorted(sha256) if name.endswith(".distcp") and sha256[name] != EMPTY_SHA256]
    return hashlib.sha256("".join(shards).encode()).hexdigest()


def misfit(checkpoint: Path, weights: Mapping[str, Tensor]) -> str:
    """The first difference in names and shapes between a checkpoint and a model's `weights`; empty if there is none."""
    stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    saved = {
        name.removeprefix("model."): list(tensor.size)
        for name, tensor in stored.items()
        if name.startswith("model.") and isinstance(tensor, TensorStorageMetadata)
    }
    here = {name: list(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(saved.keys() | here.keys()):
        if saved.get(name) != here.get(name):
            return f"{name} is {saved.get(name, 'absent')} there and {here.get(name, 'absent')} here"
    return ""


def weights_in(checkpoint: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Load the unsharded weights of a checkpoint, with the names, shapes and types of `like`."""
    weights = {name: tensor.new_empty(tensor.shape) for name, tensor in like.items()}
    state = {"model": {f"model.{name}": tensor for name, tensor in weights.items()}}
    load(state, storage_reader=FileSystemReader(checkpoint), no_dist=True)
    return weights
