"""Model and loss as one module, so that DDP, FSDP and the compiler see the whole of a forward pass.

The auxiliary loss of a mixture's routers spreads tokens over the experts. transformers adds it if a model's config has
`output_router_logits`: `router_aux_loss_coef` times the number of experts, times the sum over the experts of (choices
per token) * (mean probability), both over all layers and tokens of a batch (Fedus et al. 2021, "Switch Transformers",
equations 4 to 6). Its value depends on which tokens are taken together. Here it is taken of each sequence (as in
DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.2), weighted by its targets, so it depends neither on micro-batches nor on
the number of processes. For one sequence it is transformers' own.

The logits of a batch are its largest tensor, so a few thousand tokens at a time have their logits computed, their loss
summed and their gradients taken, all in the forward pass; the backward pass only scales them (Hsu et al. 2024, "Liger
Kernel", section 3.2). In fp32 this is torch's `functional.linear_cross_entropy`, as fast as ours and closer to the
exact gradients; compiled code is left for it, once in a micro-batch. In bf16 torch 2.13 sums the losses in bf16, which
is wrong by 0.1 nats per token; ours sums in fp32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from stages.formats.plain_head import has_plain_head
from stages.runtime.errors import UserError
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


SWITCH = "output_router_logits"
COEFFICIENT = "router_aux_loss_coef"


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
        """False if the weights come in bf16 themselves (`parallel.shard`)."""
        self.by_document = params.attention == "document"
        self.plain_head = has_plain_head(model) if plain_head is None else plain_head
        self.router_loss = router_loss_of(model, is_tried=plain_head is None)

    def forward(self, inputs: Tensor, targets: Tensor, positions: Tensor | None = None) -> Tensor:
        """(2,): both losses, each summed over all targets, in nats. Their sum is trained on.

        All are (rows, sequence_length); positions are those of `data.batches.Rows`, read under `attention: document`
        alone. Without routers the second loss is 0.
        """
        extra: dict[str, Any] = {"position_ids": positions} if self.by_document else {}
        extra |= {"output_router_logits": True} if self.router_loss else {}
        model = self.model.base_model if self.plain_head else self.model
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            output = model(input_ids=inputs, use_cache=False, **extra)
            routers = self.router_loss(output.router_logits, targets) if self.router_loss else None
        nats = self._cross_entropy(output[0].flatten(0, 1), targets.flatten())
        return torch.stack([nats, torch.zeros_like(nats) if routers is None else routers])

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


@dataclass(frozen=True)
class RouterLoss:
    """Computes it from the routers' logits."""

    coefficient: float
    experts_per_token: int

    def __call__(self, router_logits: Sequence[Tensor], targets: Tensor) -> Tensor:
        """The loss of each row times its number of targets, summed, in nats.

        `router_logits` has (rows * sequence_length, experts) for each layer; `targets` is (rows, sequence_length).
        """
        chosen = probability = torch.zeros((), device=targets.device)  # each (rows, experts)
        for logits in router_logits:
            of_token = functional.softmax(logits, dim=-1).float().view(*targets.shape, -1)
            choices = torch.topk(of_token, self.experts_per_token, dim=-1).indices
            # No scatter: under deterministic algorithms it would fall out of compiled code.
            is_chosen = (choices[..., None] == torch.arange(of_token.shape[-1], device=logits.device)).any(-2)
            chosen = chosen + is_chosen.float().sum(1)
            probability = probability + of_token.sum(1)
        tokens = targets.shape[1]
        total = tokens * len(router_logits)
        of_row = chosen.shape[-1] * ((chosen / total) * (probability / total)).sum(-1)
        return self.coefficient * tokens * of_row.sum()


def router_loss_of(model: PreTrainedModel, is_tried: bool = True) -> RouterLoss | None:
    """The auxiliary loss of a model that asks for it; None for others.

    Raises UserError if it is not what transformers adds to the loss of a trial sequence. Without values a model cannot
    be tried (`is_tried`).
    """
    config = model.config.get_text_config()
    if not getattr(config, SWITCH, False):
        return None
    coefficient, choices = getattr(config, COEFFICIENT, None), getattr(config, "num_experts_per_tok", None)
    if coefficient and choices:
        found = RouterLoss(float(coefficient), int(choices))
        if not is_tried or _is_what_is_added(found, model):
            return found
    raise UserError(
        f"params.yaml: train.model.{SWITCH}: the auxiliary loss of `{config.model_type}` is not one that this training "
        f"can add ({COEFFICIENT} * the load balancing loss of Switch Transformers); leave it out, or use another "
        "model_type, e.g. mixtral, qwen3_moe, gpt_oss, olmoe"
    )


@torch.no_grad()
def _is_what_is_added(ours: RouterLoss, model: PreTrainedModel) -> bool:
    training = model.training
    model.eval()
    row = torch.arange(8)[None]
    output = model(input_ids=row, labels=row, use_cache=False)
    model.train(training)
    if not getattr(output, "router_logits", None):
        return False
    cross_entropy = functional.cross_entropy(output.logits[0, :-1].float(), row[0, 1:])
    own = ours(output.router_logits, row) / row.numel()
    return torch.allclose(cross_entropy + own, output.loss, rtol=1e-5, atol=1e-6)


def check_router_fields(fields: dict[str, object]) -> None:
    """Raise UserError if `train.model` sets a coefficient of an auxiliary loss that would be without effect."""
    for name, value in fields.items():
        if ("aux_loss" not in name and "z_loss" not in name) or not value:
            continue
        if name != COEFFICIENT:
            raise UserError(f"params.yaml: train.model.{name} = {value}: this training adds no such loss; leave it out")
        if not fields.get(SWITCH):
            raise UserError(
                f"params.yaml: train.model.{name} = {value}: without effect; set train.model.{SWITCH}: true as well"
            )
