"""The auxiliary loss of routers in a mixture of experts, which balances the load of the experts.

transformers adds it if a model's config has `output_router_logits`: `router_aux_loss_coef` times the number of experts,
times the sum over the experts of (choices per token) * (mean probability), both over all layers and tokens of a batch
(Fedus et al. 2021, "Switch Transformers", equations 4 to 6). Its value depends on which tokens form a batch. Here it is
computed per sequence (as in DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.2) and weighted by the targets, so it depends
neither on micro-batches nor on the number of processes. For a single sequence it equals transformers'.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from stages.runtime.errors import UserError

SWITCH = "output_router_logits"
COEFFICIENT = "router_aux_loss_coef"


@dataclass(frozen=True)
class AuxLoss:
    """The auxiliary loss, from the routers' logits."""

    coefficient: float
    experts_per_token: int

    def __call__(self, router_logits: Sequence[Tensor], targets: Tensor) -> Tensor:
        """The loss of each row times its number of targets, summed, in nats.

        `router_logits` holds one (rows * sequence_length, experts) per layer; `targets` is (rows, sequence_length).
        """
        chosen = probability = torch.zeros((), device=targets.device)  # both become (rows, experts)
        for logits in router_logits:
            of_token = functional.softmax(logits, dim=-1).float().view(*targets.shape, -1)
            choices = torch.topk(of_token, self.experts_per_token, dim=-1).indices
            # No scatter: with deterministic algorithms it would break the compiled graph.
            is_chosen = (choices[..., None] == torch.arange(of_token.shape[-1], device=logits.device)).any(-2)
            chosen = chosen + is_chosen.float().sum(1)
            probability = probability + of_token.sum(1)
        tokens = targets.shape[1]
        total = tokens * len(router_logits)
        of_row = chosen.shape[-1] * ((chosen / total) * (probability / total)).sum(-1)
        return self.coefficient * tokens * of_row.sum()


def aux_loss_of(model: PreTrainedModel, is_tried: bool = True) -> AuxLoss | None:
    """The auxiliary loss of a model whose config asks for it; None for others.

    With `is_tried`, raises UserError if it differs from what transformers adds to the loss of a trial sequence.
    """
    config = model.config.get_text_config()
    if not getattr(config, SWITCH, False):
        return None
    coefficient, choices = getattr(config, COEFFICIENT, None), getattr(config, "num_experts_per_tok", None)
    if coefficient and choices:
        aux_loss = AuxLoss(float(coefficient), int(choices))
        if not is_tried or _is_transformers_own(aux_loss, model):
            return aux_loss
    raise UserError(
        f"params.yaml: train.model.{SWITCH}: the auxiliary loss of `{config.model_type}` is not one that this training "
        f"can add ({COEFFICIENT} * the load balancing loss of Switch Transformers); leave it out, or use another "
        "model_type, e.g. mixtral, qwen3_moe, gpt_oss, olmoe"
    )


@torch.no_grad()
def _is_transformers_own(aux_loss: AuxLoss, model: PreTrainedModel) -> bool:
    training = model.training
    model.eval()
    row = torch.arange(8)[None]
    output = model(input_ids=row, labels=row, use_cache=False)
    model.train(training)
    if not getattr(output, "router_logits", None):
        return False
    cross_entropy = functional.cross_entropy(output.logits[0, :-1].float(), row[0, 1:])
    added = aux_loss(output.router_logits, row) / row.numel()
    return torch.allclose(cross_entropy + added, output.loss, rtol=1e-5, atol=1e-6)


def check_router_fields(fields: dict[str, object]) -> None:
    """Raise UserError if `train.model` sets a coefficient of an auxiliary loss that would have no effect."""
    for name, value in fields.items():
        if ("aux_loss" not in name and "z_loss" not in name) or not value:
            continue
        if name != COEFFICIENT:
            raise UserError(f"params.yaml: train.model.{name} = {value}: this training adds no such loss; leave it out")
        if not fields.get(SWITCH):
            raise UserError(
                f"params.yaml: train.model.{name} = {value}: without effect; set train.model.{SWITCH}: true as well"
            )
