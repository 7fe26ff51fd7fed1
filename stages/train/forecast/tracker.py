"""The bytes that tensors hold, by what they are for, while a training step runs without values.

torch's fake tensors have a shape, a dtype and a device, and no memory: operations on them take no arithmetic. Every
tensor that an operation makes passes by here, and counts until nothing refers to its storage any more. What a kernel
needs inside itself is not seen.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MemoryPart = Literal["weights", "gradients", "optimizer", "activations", "loss"]


class MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is active; `part` says for what new tensors are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.part: MemoryPart = "activations"
        self.held: Counter[MemoryPart] = Counter()
        """Bytes now."""
        self.peak: Counter[MemoryPart] = Counter()
        """Bytes at the moment when their sum was largest."""
        self._part_of: dict[int, MemoryPart] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count the tensors that it makes."""
        call: Callable[..., Any] = _grouped_mm if func is torch.ops.aten._grouped_mm.default else func
        made = call(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, Tensor):
                self.count(value, self.part)
        return made

    def count(self, tensor: Tensor, part: MemoryPart) -> None:
        """Count a tensor's storage as a part, where it is not counted yet."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._part_of:
            return
        self._part_of[key] = part
        self.held[part] += size
        weakref.finalize(storage, self._forget, key, size).atexit = False
        if self.held.total() > self.peak.total():
            self.peak = self.held.copy()

    def move(self, tensor: Tensor, part: MemoryPart) -> None:
        """Count a tensor as another part from now on: what was an intermediate result is now a gradient."""
        storage = tensor.untyped_storage()
        before = self._part_of[storage._cdata]
        self._part_of[storage._cdata] = part
        self.held[before] -= storage.nbytes()
        self.held[part] += storage.nbytes()

    @contextmanager
    def counting_as(self, part: MemoryPart) -> Iterator[None]:
        """New tensors within are for `part`."""
        before, self.part = self.part, part
        yield
        self.part = before

    def _forget(self, key: int, size: int) -> None:
        self.held[self._part_of.pop(key)] -= size


def _grouped_mm(a: Tensor, b: Tensor, offsets: Tensor | None = None, *others: Any, **options: Any) -> Tensor:
    """The product of a mixture's tokens with their experts' matrices: its shape in any dtype.

    torch 2.13 knows the shape in bf16 only (`torch._meta_registrations.meta_grouped_mm`), the kernel takes fp32 too.
    """
    if a.ndim == 2 and b.ndim == 3:  # tokens by their experts' matrices
        return a.new_empty(a.shape[0], b.shape[-1])
    if a.ndim == 2 and b.ndim == 2 and offsets is not None:  # the gradient of the matrices
        return a.new_empty(len(offsets), a.shape[0], b.shape[-1])
    made: Tensor = torch.ops.aten._grouped_mm.default(a, b, offsets, *others, **options)
    return made
