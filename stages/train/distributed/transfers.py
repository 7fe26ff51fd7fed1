"""Copies between the host and a GPU that the host does not wait for.

The host queues work for the GPU and runs ahead of it. Where it waits for a result, the GPU has nothing to do from the
end of its queue until the host has queued the next operations. A copy to the GPU also waits, unless it is from pinned
memory, which the GPU reads by itself.
"""

import torch
from torch import Tensor

from stages.train.data.batches import Rows


def pinned(rows: Rows) -> Rows:
    """The same rows in pinned memory."""
    arrays = (rows.inputs, rows.targets, rows.positions, rows.boundaries)
    return Rows(*(torch.from_numpy(array).pin_memory().numpy() for array in arrays))


class HostCopy:
    """A value on the host, to be read later: what was queued since does not have to be waited for."""

    def __init__(self, scalar: Tensor) -> None:
        on_gpu = scalar.device.type == "cuda"
        self._copy = torch.empty_like(scalar, device="cpu", pin_memory=on_gpu)
        self._copy.copy_(scalar, non_blocking=True)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def read(self) -> float:
        """The value, as it was when this was made."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy.item()
