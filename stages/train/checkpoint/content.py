"""What a checkpoint's files hold: the hash of its tensors, and data that is read without running code.

A checkpoint's files depend on how many processes wrote them; its tensors do not. So the tensors are hashed, whole, in
the order of their names. They are put together one at a time from the finished files: no process ever holds the model,
and a training that continues meanwhile is not asked for anything.

A checkpoint may come from a bucket that others can write to. torch reads `.metadata`, and each value that is no tensor,
by pickle, which can call any function. Both are kept here to what a checkpoint consists of. A changed number is not
noticed (the hashes come from the same bucket), changed code is.
"""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

METADATA = ".metadata"

ALLOWED_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
ALLOWED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("builtins", "set"),
    ("pathlib", "PosixPath"),
    ("pathlib", "Path"),
}


def content_sha256(checkpoint: Path) -> str:
    """The sha256 over name, dtype, shape and bytes of every tensor: weights and optimizer state, sorted by name.

    The optimizers' settings, which are no tensors, follow from the parameters and the step. Reads `.metadata` by
    pickle: of a checkpoint from elsewhere check it first (`manifest.fault`).
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


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if module not in ALLOWED_MODULES and (module, name) not in ALLOWED and not is_dtype:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        if "." in name:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)
