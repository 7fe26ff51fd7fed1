"""The sha256 of what a checkpoint holds, whatever its files look like.

A checkpoint's files depend on how many processes wrote them; its tensors do not. So the tensors are hashed, whole, in
the order of their names. They are put together one at a time from the finished files: no process ever holds the model,
and a training that continues meanwhile is not asked for anything.
"""

import hashlib
from pathlib import Path

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata


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
