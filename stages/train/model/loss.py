"""Model and loss as one module, so that DDP, FSDP and the compiler see the whole of a forward pass."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from stages.formats.plain_head import has_plain_head
from stages.train.data.batches import IGNORED
from stages.train.model.linear_cross_entropy import linear_cross_entropy
from stages.train.params import TrainParams


class CausalLoss(nn.Module):
    """Next-token cross-entropy of a causal language model, summed over targets, in nats."""

    def __init__(self, model: PreTrainedModel, params: TrainParams) -> None:
        super().__init__()
        if params.precision == "auto":
            raise ValueError("precision is auto: resolve_precision first")
        self.model = model
        self.dtype = torch.bfloat16 if params.precision == "bf16" else torch.float32
        self.by_document = params.attention == "document"
        self.plain_head = has_plain_head(model)

    def forward(self, inputs: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        """Sum over all targets that are not `IGNORED`; all three are (rows, sequence_length)."""
        extra = {"position_ids": positions} if self.by_document else {}
        model = self.model.base_model if self.plain_head else self.model
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            output = model(input_ids=inputs, use_cache=False, **extra)[0].flatten(0, 1)
        if self.plain_head:
            head = self.model.get_output_embeddings().weight
            return linear_cross_entropy(output, head, targets.flatten(), self.dtype)
        return functional.cross_entropy(output.float(), targets.flatten(), ignore_index=IGNORED, reduction="sum")
