"""Model and loss as one module, so that DDP, FSDP and the compiler see the whole of a forward pass.

The logits of a batch are its largest tensor, so a few thousand tokens at a time have their logits computed, their loss
summed and their gradients taken, all in the forward pass; the backward pass only scales them (Hsu et al. 2024, "Liger
Kernel", section 3.2). In fp32 this is torch's `functional.linear_cross_entropy`, as fast as ours and closer to the
exact gradients; compiled code is left for it, once in a micro-batch. In bf16 torch 2.13 sums the losses in bf16, which
is wrong by 0.1 nats per token; ours sums in fp32.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from stages.formats.plain_head import has_plain_head
from stages.runtime.errors import UserError
from stages.train.compute.model.head_rows import DrawnRows, HeadRows, sampled_cross_entropy
from stages.train.compute.model.routers import SWITCH, aux_loss_of
from stages.train.compute.params import ComputingParams

ROWS_PER_WIDTH = {torch.bfloat16: 4, torch.float32: 2}
"""Tokens at once on a CPU, by the head's width. More tokens mean fewer sums of the head's gradient, and more memory. In
bf16 on CPUs with AMX 4 was the fastest tried at widths of 256 and 512, and 2.7 at 768. In fp32 torch chooses too few:
128 of 4,096 tokens for a head of 4,096 x 256, which is 10 to 25 % slower, and 16 of 2,048 tokens for a head of
50,257 x 768, which takes three times as long."""

GPU_LOGITS = 2**28
"""Logits at once on a GPU: 1 GiB in fp32, of which about five are alive where this is not compiled. Four times as many
took 2.6 GiB more of an H200 (GPT-2 124M); their speed could not be told apart."""

GPU_LEAST_ROWS = 1024
"""Tokens at once on a GPU for the largest vocabularies: fewer would leave its matrix units idle."""


def rows_at_once(device_type: str, vocabulary: int, width: int, dtype: torch.dtype) -> int:
    """Tokens whose logits are computed together."""
    if device_type == "cpu":
        return ROWS_PER_WIDTH[dtype] * width
    return max(GPU_LEAST_ROWS, GPU_LOGITS // vocabulary)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """The cross-entropy of `hidden @ weight.T` summed over all targets, in nats.

    `hidden` is (tokens, width), `weight` (vocabulary, width), `targets` (tokens); products are taken in `dtype`.
    """
    vocabulary, width = weight.shape
    rows = rows_at_once(hidden.device.type, vocabulary, width, dtype)
    if dtype == torch.float32:
        # Retained graphs are not needed here; torch warns under its compiler unless this is set.
        options = nn.LinearCrossEntropyOptions(allow_retain_graph=torch.compiler.is_compiling(), batch_chunk_size=rows)
        return functional.linear_cross_entropy(hidden, weight, targets, reduction="sum", options=options)
    total: Tensor
    if torch.is_grad_enabled():
        total = _LinearCrossEntropy.apply(hidden, weight, targets, dtype, rows)  # type: ignore[no-untyped-call]
        return total
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    total = torch.zeros((), device=hidden.device)
    for part, wanted in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        logits = functional.linear(part, weight).float()
        total = total + functional.cross_entropy(logits, wanted, reduction="sum")
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    """Loss and gradients in one pass; the gradient of the head is summed in fp32."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, rows: int) -> Tensor:
        head = weight.to(dtype)
        vocabulary = torch.arange(len(weight), device=weight.device)
        total = torch.zeros((), device=weight.device)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        hidden_gradients = []
        for part, wanted in zip(torch.split(hidden.to(dtype), rows), torch.split(targets, rows), strict=True):
            log_probabilities = torch.log_softmax(functional.linear(part, head).float(), dim=-1)
            total = total + functional.nll_loss(log_probabilities, wanted, reduction="sum")
            # No scatter: under deterministic algorithms it would fall out of compiled code.
            hit = (vocabulary == wanted[:, None]).float()
            gradient = (log_probabilities.exp() - hit).to(dtype)
            hidden_gradients.append(gradient @ head)
            weight_gradient = weight_gradient + (gradient.t() @ part).float()
        ctx.save_for_backward(torch.cat(hidden_gradients), weight_gradient)
        ctx.hidden_dtype = hidden.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        (scale,) = upstream
        return hidden_gradient.to(ctx.hidden_dtype) * scale, weight_gradient * scale, None, None, None


class CausalLoss(nn.Module):
    """Next-token cross-entropy of a causal language model, and the auxiliary loss of its routers if it has one."""

    def __init__(self, model: PreTrainedModel, params: ComputingParams, plain_head: bool | None = None) -> None:
        """`plain_head`: given for a model without values, which cannot be tried."""
        super().__init__()
        if params.precision == "auto":
            raise ValueError("precision is auto: resolve_precision first")
        self.model = model
        self.dtype = torch.bfloat16 if params.precision == "bf16" else torch.float32
        self.autocast = self.dtype == torch.bfloat16
        """False if the weights come in bf16 themselves (`apply_fsdp`)."""
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
        """(2,): both losses, each summed over all targets, in nats. Their sum is trained on.

        All are (rows, sequence_length); positions are those of `data.batches.Rows`, read under `attention: document`
        alone. Without routers the second loss is 0. `drawn`: the loss uses these rows of the output matrix, not all.
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
        """Tokens whose logits are computed together; 1 if it is always all of them."""
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
