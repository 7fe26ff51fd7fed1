"""Model and loss as one module, so that DDP, FSDP and the compiler see the whole forward pass."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from stages.formats.architecture import has_plain_head
from stages.runtime.errors import UserError
from stages.train.compute.model.cross_entropy import linear_cross_entropy, rows_at_once
from stages.train.compute.model.head_rows import DrawnRows, HeadRows, sampled_cross_entropy
from stages.train.compute.model.routers import SWITCH, aux_loss_of
from stages.train.compute.params import ComputingParams


class CausalLoss(nn.Module):
    """Next-token cross-entropy of a causal language model, and the auxiliary loss of its routers, if any."""

    def __init__(self, model: PreTrainedModel, params: ComputingParams, plain_head: bool | None = None) -> None:
        """`plain_head`: required for a model without values; otherwise found by a trial."""
        super().__init__()
        if params.precision == "auto":
            raise ValueError("precision is auto: resolve_precision first")
        self.model = model
        self.dtype = torch.bfloat16 if params.precision == "bf16" else torch.float32
        self.autocast = self.dtype == torch.bfloat16
        """False if FSDP gathers the weights in bf16 (`apply_fsdp`)."""
        self.by_document = params.attention == "document"
        self.plain_head = has_plain_head(model) if plain_head is None else plain_head
        if params.head_rows is not None and not self.plain_head:
            raise UserError(
                f"params.yaml: train.head_rows = {params.head_rows}: the logits of `{model.config.model_type}` are not "
                "its output matrix times the hidden states alone; set null"
            )
        self.head_rows: HeadRows | None = None
        self.aux_loss = aux_loss_of(model, is_tried=plain_head is None)

    def forward(
        self, inputs: Tensor, targets: Tensor, positions: Tensor | None = None, drawn: DrawnRows | None = None
    ) -> Tensor:
        """Both losses, each summed over all targets, in nats; shape (2,). Training minimizes their sum.

        Inputs are (rows, sequence_length), as in `Rows`; positions are used only with `attention: document`. Without
        routers the second loss is 0. `drawn`: use only these rows of the output matrix, and those of the targets.
        """
        extra: dict[str, Any] = {"position_ids": positions} if self.by_document else {}
        extra |= {SWITCH: True} if self.aux_loss else {}
        model = self.model.base_model if self.plain_head else self.model
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            output = model(input_ids=inputs, use_cache=False, **extra)
            aux_loss = self.aux_loss(output.router_logits, targets) if self.aux_loss else None
        if drawn is None:
            nats = self._cross_entropy(output[0].flatten(0, 1), targets.flatten())
        else:
            head = self.model.get_output_embeddings().weight
            nats = sampled_cross_entropy(output[0], head, targets, drawn, self.dtype)
        return torch.stack([nats, torch.zeros_like(nats) if aux_loss is None else aux_loss])

    def rows_at_once(self, device_type: str) -> int:
        """Tokens whose logits are computed together; 1 if a model always computes all."""
        if not self.plain_head:
            return 1
        vocabulary, width = self.model.get_output_embeddings().weight.shape
        return rows_at_once(device_type, vocabulary, width, self.dtype)

    def _cross_entropy(self, output: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of `output`: hidden states if the head is plain, else logits; targets: (tokens,)."""
        if self.plain_head:
            head = self.model.get_output_embeddings().weight
            return linear_cross_entropy(output, head, targets, self.dtype)
        return functional.cross_entropy(output.float(), targets, reduction="sum")
