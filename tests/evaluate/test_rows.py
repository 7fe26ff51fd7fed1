"""What a step of the batched generator asks of the host: on a GPU each of these would be waited for."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel

from stages.evaluate.rows import BatchedRows

READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero"}
"""Values that the host reads from the device."""

SENDS = "lift_fresh"
"""A tensor that the host fills, to be sent there."""


class Exchanges(TorchDispatchMode):
    """Counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        # A GPU is told a single number with the operation that uses it.
        self.counts[name] += name != SENDS or args[0].numel() > 1
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def test_a_step_sends_one_tensor_to_the_device_and_reads_none() -> None:
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    rows = BatchedRows(GPT2LMHeadModel(config).eval(), 4, 16)
    for row in (0, 2, 3):
        rows.read(row, [1, 2, 3])
    rows.step({0: 5, 2: 6, 3: 7})
    with Exchanges() as exchanges:
        rows.step({0: 8, 3: 9})
    assert exchanges.counts[SENDS] == 1
    assert not READS & {*exchanges.counts}
