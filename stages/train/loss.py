"""Model and loss as one module, so that DDP, FSDP and the compiler see the whole of a forward pass."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from stages.train.batches import IGNORED


class CausalLoss(nn.Module):
    """Next-token cross-entropy of a causal language model, summed over targets, in nats."""

    def __init__(self, model: PreTrainedModel, precision: str) -> None:
        super().__init__()
        self.model = model
        self.bf16 = precision == "bf16"

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Sum over all targets that are not `IGNORED`; `inputs` and `targets` are (rows, sequence_length)."""
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            # No attention mask: the kernel for plain causal attention is the fast one.
            logits = self.model(input_ids=inputs, use_cache=False).logits
        return functional.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
