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
DCP_METADATA = ".metadata"
SHARD_SUFFIX = ".distcp"
"""How the names of the files end that hold the state."""

EMPTY_SHA256 = hashlib.sha256().hexdigest()
IDENTITY = "identity.json"
"""In the folder of a run's checkpoints: what they belong to."""


class TrainingProgress(BaseModel):
    """How far a run is: what is neither in the weights nor in the optimizer's state."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    step: int
    """Optimizer steps done."""
    training_loss: float
    """Loss of the last step, nats per token."""


@dataclass(frozen=True)
class History:
    """The sessions of a run, and the content of its checkpoints, also of those that are deleted by now.

    Every checkpoint carries it, as it carries the curves. So a run that continues takes up the history of the
    checkpoint that it continues from: what a killed run did after that is computed again and never counted.
    """

    sessions: list[Session] = field(default_factory=list)
    contents: dict[int, str] = field(default_factory=dict)
    """Step -> `content_sha256` of its checkpoint. A step is missing if its checkpoint could not be written."""
    held_out: str = ""
    """Identifies the held-out sequences that the curves were measured on."""

    def sessions_until(self, step: int) -> list[Session]:
        """The sessions that computed the steps up to `step`, the last one cut there."""
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
    """Step of this checkpoint and of those before it -> `content_sha256`."""
    held_out: str
    """As in `History`."""


def write_manifest(checkpoint: Path, progress: TrainingProgress, history: History, sha256: dict[str, str]) -> None:
    """Write it: the last of a checkpoint's files."""
    sessions = history.sessions_until(progress.step)
    manifest = CheckpointManifest(
        **dict(progress), sha256=sha256, sessions=sessions, contents=history.contents, held_out=history.held_out
    )
    atomic_write(checkpoint / CHECKPOINT_MANIFEST, json.dumps(manifest.model_dump(mode="json"), indent=1))


def read_manifest(checkpoint: Path) -> CheckpointManifest:
    """How far a checkpoint is, and how it came about. Raises OSError or ValidationError if it has no manifest."""
    return CheckpointManifest.model_validate_json((checkpoint / CHECKPOINT_MANIFEST).read_bytes())


def fault(checkpoint: Path) -> str:
    """Why a checkpoint cannot be used; empty if its files are those of its manifest."""
    try:
        manifest = read_manifest(checkpoint)
    except (OSError, ValidationError):
        return f"it has no complete {CHECKPOINT_MANIFEST}"
    for name in sorted({DCP_METADATA, *manifest.sha256}):
        file = checkpoint / name
        if not file.is_file() or file_sha256(file) != manifest.sha256.get(name):
            return f"{name} is missing or damaged"
    return ""


def content_sha256(sha256: Mapping[str, str]) -> str:
    """One hash for the state of a checkpoint, given those of its files: the same for the same number of shards.

    Processes whose state the main one saves, as in data parallel training, leave empty files, which do not count.
    """
    shards = [sha256[name] for name in sorted(sha256) if name.endswith(SHARD_SUFFIX) and sha256[name] != EMPTY_SHA256]
    return hashlib.sha256("".join(shards).encode()).hexdigest()


def misfit(checkpoint: Path, weights: Mapping[str, Tensor]) -> str:
    """The first weight of a checkpoint that is not in a model, or the other way round, or of another shape.

    Empty if all fit. `weights` are the model's by their names.
    """
    stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    there = {
        name.removeprefix("model."): list(tensor.size)
        for name, tensor in stored.items()
        if name.startswith("model.") and isinstance(tensor, TensorStorageMetadata)
    }
    here = {name: list(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            return f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} here"
    return ""


def weights_in(checkpoint: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The whole weights in a checkpoint, with the names, shapes and types of those in `like`."""
    found = {name: tensor.new_empty(tensor.shape) for name, tensor in like.items()}
    state = {"model": {f"model.{name}": tensor for name, tensor in found.items()}}
    load(state, storage_reader=FileSystemReader(checkpoint), no_dist=True)
    return found
