"""Model and loss as one module, so that DDP, FSDP and the compiler see the whole of a forward pass.

To it belongs the auxiliary loss by which the routers of a mixture of experts learn to spread tokens over the experts.

transformers adds it to the loss where a model's config has `output_router_logits`: `router_aux_loss_coef` times the
experts' number, times the sum over the experts of (choices per token) * (mean probability), both over all layers and
tokens of a batch (Fedus et al. 2021, "Switch Transformers", equations 4 to 6).

It is no sum over tokens, so its value depends on which tokens are taken together. Here it is that of each sequence, and
the sequences are weighted by their targets, as the cross-entropy weights them: so it depends neither on micro-batches
nor on the number of processes. For one sequence it is transformers' own. It asks for more than that of a batch: each
sequence is to be spread (DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.2 does so too, with a coefficient of 0.0001).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from stages.formats.plain_head import has_plain_head
from stages.runtime.entry import UserError
from stages.train.data.batches import IGNORED
from stages.train.model.document_attention import DOCUMENTS, as_mask
from stages.train.model.linear_cross_entropy import linear_cross_entropy, rows_at_once
from stages.train.params import TrainParams

SWITCH = "output_router_logits"
COEFFICIENT = "router_aux_loss_coef"


class CausalLoss(nn.Module):
    """Next-token cross-entropy of a causal language model, and the auxiliary loss of its routers if it has one."""

    def __init__(self, model: PreTrainedModel, params: TrainParams, plain_head: bool | None = None) -> None:
        """`plain_head`: said by one whose model has no values to try it with, as in a forecast."""
        super().__init__()
        if params.precision == "auto":
            raise ValueError("precision is auto: resolve_precision first")
        self.model = model
        self.dtype = torch.bfloat16 if params.precision == "bf16" else torch.float32
        self.autocast = self.dtype == torch.bfloat16
        """False where the weights come in bf16 themselves (`parallel.shard`)."""
        self.by_document = params.attention == "document"
        self.plain_head = has_plain_head(model) if plain_head is None else plain_head
        self.router_loss = router_loss_of(model, is_tried=plain_head is None)

    def forward(
        self, inputs: Tensor, targets: Tensor, positions: Tensor | None = None, boundaries: Tensor | None = None
    ) -> Tensor:
        """(2,): both losses, each summed over all targets that are not `IGNORED`, in nats. Their sum is trained on.

        The first three are (rows, sequence_length); positions and boundaries, (documents + 1,), are those of
        `data.batches.Rows`, read under `attention: document` alone. Without routers the second loss is 0.
        """
        extra: dict[str, Any] = {"position_ids": positions} if self.by_document else {}
        if boundaries is not None and self.model.config._attn_implementation == DOCUMENTS:
            extra["attention_mask"] = as_mask(boundaries)
        extra |= {"output_router_logits": True} if self.router_loss else {}
        model = self.model.base_model if self.plain_head else self.model
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            output = model(input_ids=inputs, use_cache=False, **extra)
            routers = self.router_loss(output.router_logits, targets) if self.router_loss else None
        nats = self._cross_entropy(output[0].flatten(0, 1), targets.flatten())
        return torch.stack([nats, torch.zeros_like(nats) if routers is None else routers])

    def rows_at_once(self, device_type: str) -> int:
        """Tokens whose logits are computed together; 1 where it is always all of them."""
        if not self.plain_head:
            return 1
        vocabulary, width = self.model.get_output_embeddings().weight.shape
        return rows_at_once(device_type, vocabulary, width, self.dtype)

    def _cross_entropy(self, output: Tensor, targets: Tensor) -> Tensor:
        """Of hidden states where the head is plain, else of logits; (tokens, width) and (tokens,)."""
        if self.plain_head:
            head = self.model.get_output_embeddings().weight
            return linear_cross_entropy(output, head, targets, self.dtype)
        return functional.cross_entropy(output.float(), targets, ignore_index=IGNORED, reduction="sum")


@dataclass(frozen=True)
class RouterLoss:
    """Computes it from the routers' logits."""

    coefficient: float
    experts_per_token: int

    def __call__(self, router_logits: Sequence[Tensor], targets: Tensor) -> Tensor:
        """The loss of each row times its number of targets, summed, in nats; inputs without a target do not count.

        `router_logits`: of each layer, (rows * sequence_length, experts). `targets`: (rows, sequence_length).
        """
        counted = (targets != IGNORED).float()
        chosen = probability = torch.zeros((), device=targets.device)  # each (rows, experts)
        for logits in router_logits:
            of_token = functional.softmax(logits, dim=-1).float().view(*targets.shape, -1)
            choices = torch.topk(of_token, self.experts_per_token, dim=-1).indices
            # No scatter: under deterministic algorithms it would fall out of compiled code.
            is_chosen = (choices[..., None] == torch.arange(of_token.shape[-1], device=logits.device)).any(-2)
            chosen = chosen + (is_chosen * counted[..., None]).sum(1)
            probability = probability + (of_token * counted[..., None]).sum(1)
        tokens = counted.sum(1, keepdim=True)
        total = (tokens * len(router_logits)).clamp(min=1)
        of_row = chosen.shape[-1] * ((chosen / total) * (probability / total)).sum(-1)
        return self.coefficient * (of_row * tokens.squeeze(1)).sum()


def router_loss_of(model: PreTrainedModel, is_tried: bool = True) -> RouterLoss | None:
    """The auxiliary loss of a model that asks for it; None for others.

    Raises UserError where it is not, for a trial sequence, what transformers adds to the loss; `is_tried`: whether one
    is made, for which the model needs values.
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
    """Raise UserError where `train.model` sets a coefficient of an auxiliary loss that would be without effect."""
    for name, value in fields.items():
        if ("aux_loss" not in name and "z_loss" not in name) or not value:
            continue
        if name != COEFFICIENT:
            raise UserError(f"params.yaml: train.model.{name} = {value}: this training adds no such loss; leave it out")
        if not fields.get(SWITCH):
            raise UserError(
                f"params.yaml: train.model.{name} = {value}: without effect; set train.model.{SWITCH}: true as well"
            )
