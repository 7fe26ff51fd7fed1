"""Model and loss as one module, so that DDP, FSDP and the compiler see the whole of a forward pass."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from stages.train.batches import IGNORED
from stages.train.params import TrainParams


class CausalLoss(nn.Module):
    """Next-token cross-entropy of a causal language model, summed over targets, in nats."""

    def __init__(self, model: PreTrainedModel, params: TrainParams) -> None:
        super().__init__()
        self.model = model
        self.bf16 = params.precision == "bf16"
        self.by_document = params.attention == "document"

    def forward(self, inputs: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        """Sum over all targets that are not `IGNORED`; all three are (rows, sequence_length)."""
        where = {"position_ids": positions} if self.by_document else {}
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            logits = self.model(input_ids=inputs, use_cache=False, **where).logits
        return functional.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
