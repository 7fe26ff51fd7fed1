"""Model and loss as one module, so that DDP, FSDP and the compiler see the whole of a forward pass."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from stages.formats.plain_head import has_plain_head
from stages.train.data.batches import IGNORED
from stages.train.model.linear_cross_entropy import linear_cross_entropy
from stages.train.model.router_loss import router_loss
from stages.train.params import TrainParams


class CausalLoss(nn.Module):
    """Next-token cross-entropy of a causal language model, and the auxiliary loss of its routers if it has one."""

    def __init__(self, model: PreTrainedModel, params: TrainParams) -> None:
        super().__init__()
        if params.precision == "auto":
            raise ValueError("precision is auto: resolve_precision first")
        self.model = model
        self.dtype = torch.bfloat16 if params.precision == "bf16" else torch.float32
        self.by_document = params.attention == "document"
        self.plain_head = has_plain_head(model)
        self.router_loss = router_loss(model)

    def forward(self, inputs: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        """(2,): both losses, each summed over all targets that are not `IGNORED`, in nats. Their sum is trained on.

        All three inputs are (rows, sequence_length). Without routers the second is 0.
        """
        extra: dict[str, Any] = {"position_ids": positions} if self.by_document else {}
        extra |= {"output_router_logits": True} if self.router_loss else {}
        model = self.model.base_model if self.plain_head else self.model
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            output = model(input_ids=inputs, use_cache=False, **extra)
            routers = self.router_loss(output.router_logits, targets) if self.router_loss else None
        nats = self._cross_entropy(output[0].flatten(0, 1), targets.flatten())
        return torch.stack([nats, torch.zeros_like(nats) if routers is None else routers])

    def _cross_entropy(self, output: Tensor, targets: Tensor) -> Tensor:
        """Of hidden states where the head is plain, else of logits; (tokens, width) and (tokens,)."""
        if self.plain_head:
            head = self.model.get_output_embeddings().weight
            return linear_cross_entropy(output, head, targets, self.dtype)
        return functional.cross_entropy(output.float(), targets, ignore_index=IGNORED, reduction="sum")
