"""What a checkpoint is: its manifest (which step, how it came about, the sha256 of each file), and what its files hold.

A checkpoint's files depend on how many processes wrote them; its tensors do not. So the tensors are hashed, whole, in
the order of their names, each put together from the finished files: no process ever holds the model.

A checkpoint may come from a bucket that others can write to. torch reads `.metadata`, and each value that is no tensor,
by pickle, which can call any function. Both are kept here to what a checkpoint consists of. A changed number is not
noticed (the hashes come from the same bucket), changed code is.
"""

import hashlib
import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import EnumType
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from stages.formats.revision.execution import Session
from stages.runtime.atomic import atomic_write, file_sha256
from stages.train.params import TrainParams

CHECKPOINT_MANIFEST = "manifest.json"
METADATA = ".metadata"
IDENTITY = "identity.json"
"""In the folder of a run's checkpoints: what they belong to."""

ALLOWED_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
ALLOWED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("builtins", "set"),
    ("pathlib", "PosixPath"),
    ("pathlib", "Path"),
}


class TrainingProgress(BaseModel):
    """How far a run is: what is neither in the weights nor in the optimizer's state."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    step: int
    """Optimizer steps done."""
    training_loss: float
    """Of the last step, nats per token."""
    max_steps: int
    """`train.max_steps` of the run that saved this."""
    log_every_steps: int
    """Steps between the points of its training curves."""
    evaluate_every_steps: int
    """Steps between the points of its validation curves."""

    @classmethod
    def of(cls, params: TrainParams, step: int, training_loss: float) -> "TrainingProgress":
        """Return the progress of a run with these parameters."""
        names = ("max_steps", "log_every_steps", "evaluate_every_steps")
        own = {name: getattr(params, name) for name in names}
        return cls(step=step, training_loss=training_loss, **own)


@dataclass(frozen=True)
class History:
    """The sessions of a run, and the content of its checkpoints, also of those that are deleted by now.

    Every checkpoint carries it, as it carries the curves. So a run that continues takes up the history of the
    checkpoint that it continues from: what a killed run did after that is computed again and never counted.
    """

    sessions: list[Session] = field(default_factory=list)
    contents: dict[int, str] = field(default_factory=dict)
    """Step -> `content_sha256` of its checkpoint. Steps are missing where no checkpoint could be written."""

    def sessions_until(self, step: int) -> list[Session]:
        """The sessions that computed the steps 1 to `step`, the last one cut there.

        Of those that computed no step only one that took over a finished run of other code, which is to be known.
        """
        return [
            session.model_copy(update={"last_step": min(session.last_step, step)})
            for session in self.sessions
            if session.first_step <= step or session.continued_from
        ]


class CheckpointManifest(TrainingProgress):
    """The content of manifest.json."""

    sha256: dict[str, str]
    """File name -> hash, in hex."""
    sessions: list[Session] = []
    """How the steps until this one were executed; empty in checkpoints of before this was recorded."""
    contents: dict[int, str] = {}
    """Step of this checkpoint and of those before it -> `content_sha256`."""
    exports: dict[int, dict[str, str]] = {}
    """Where there is a mirror, which has them too: step -> file name -> hash of the models of `export_steps`."""


def write_manifest(
    checkpoint: Path,
    progress: TrainingProgress,
    history: History,
    sha256: dict[str, str],
    exports: dict[int, dict[str, str]],
) -> None:
    """Write it: the last of a checkpoint's files."""
    sessions = history.sessions_until(progress.step)
    manifest = CheckpointManifest(
        **dict(progress),
        sha256=sha256,
        sessions=sessions,
        contents=history.contents,
        exports=exports,
    )
    atomic_write(checkpoint / CHECKPOINT_MANIFEST, json.dumps(manifest.model_dump(mode="json"), indent=1))


def read_manifest(checkpoint: Path) -> CheckpointManifest:
    """How far a checkpoint is, and how it came about. Raises OSError or ValidationError where it has no manifest."""
    return CheckpointManifest.model_validate_json((checkpoint / CHECKPOINT_MANIFEST).read_bytes())


def fault(checkpoint: Path) -> str:
    """Why a checkpoint cannot be used; empty where its files are those of its manifest."""
    try:
        manifest = read_manifest(checkpoint)
    except (OSError, ValidationError):
        return f"it has no complete {CHECKPOINT_MANIFEST}"
    for name in sorted({METADATA, *manifest.sha256}):
        file = checkpoint / name
        if not file.is_file() or file_sha256(file) != manifest.sha256.get(name):
            return f"{name} is missing or damaged"
    try:
        check_metadata(checkpoint / METADATA)
    except pickle.UnpicklingError as error:
        return f"{METADATA} is not torch's: {error}"
    return ""


def content_sha256(checkpoint: Path) -> str:
    """The sha256 over name, dtype, shape and bytes of every tensor: weights and optimizer state, sorted by name.

    The optimizers' settings, which are no tensors, follow from the parameters and the step. Reads `.metadata` by
    pickle: of a checkpoint from elsewhere check it first (`fault`).
    """
    reader = FileSystemReader(checkpoint)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    digest = hashlib.sha256()
    for name, stored in sorted(metadata.state_dict_metadata.items()):
        if isinstance(stored, TensorStorageMetadata):
            tensor = _whole_tensor(name, stored, reader, metadata)
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def misfit(checkpoint: Path, weights: Mapping[str, torch.Tensor]) -> str:
    """The first weight of a checkpoint that is not in a model, or the other way round, or of another shape.

    Empty where all fit. `weights` are the model's by their names.
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


def _whole_tensor(
    name: str, stored: TensorStorageMetadata, reader: FileSystemReader, metadata: Metadata
) -> torch.Tensor:
    """One tensor, from the parts that the processes wrote."""
    tensor = torch.empty(stored.size, dtype=stored.properties.dtype)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner({name: tensor}, metadata, is_coordinator=True)
    reader.read_data(planner.create_local_plan(), planner).wait()
    return tensor


class DataOnlyPlanner(DefaultLoadPlanner):
    """Loads values that are no tensors (an optimizer's settings) as plain data."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Raises pickle.UnpicklingError for anything else, before torch's own planner reads it."""
        torch.load(value, weights_only=True)
        value.seek(0)
        super().load_bytes(read_item, value)


def check_metadata(file: Path) -> None:
    """Raise pickle.UnpicklingError where `.metadata` needs anything beyond what torch writes there."""
    try:
        with file.open("rb") as stream:
            _DataUnpickler(stream).load()
    except (EOFError, AttributeError, IndexError, ValueError) as error:
        raise pickle.UnpicklingError(f"damaged ({error})") from None


def enum_member(owner: Any, name: str) -> Any:
    """What `getattr` gives where Python 3.11.0 to 3.11.3 pickles a member of an enum by it, and for nothing else."""
    if isinstance(owner, EnumType) and name in owner.__members__:
        return owner[name]
    raise pickle.UnpicklingError(f"it asks for the attribute {name} of {owner!r}")


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return enum_member
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        is_known = is_dtype or module in ALLOWED_MODULES or (module, name) in ALLOWED
        if not is_known or "." in name:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)
