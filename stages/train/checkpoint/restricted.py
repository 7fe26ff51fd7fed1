"""Reads a checkpoint's data without running code from it: it may come from a bucket that others can write to.

torch reads `.metadata`, and each value that is no tensor, by pickle, which can call any function. Both are kept here to
what a checkpoint consists of. A changed number is not noticed (the hashes come from the same bucket), changed code is.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
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
