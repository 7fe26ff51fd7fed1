"""AdamW, or Muon for the hidden matrices and AdamW for the rest, with the learning rate set at each step."""

from collections.abc import Iterable, Iterator

import torch
from torch import nn
from transformers import PreTrainedModel

from stages.train.optim.muon import Muon
from stages.train.optim.roles import BY_MUON, DECAYED, Role, weights
from stages.train.params import Optimizer as OptimizerParams
from stages.train.params import TrainParams


class Optimizers:
    """The optimizers of one model, stepped together."""

    def __init__(self, peaks: Iterable[tuple[torch.optim.Optimizer, float]]) -> None:
        self._peaks = list(peaks)

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return (optimizer for optimizer, _ in self._peaks)

    def step(self, lr_multiplier: float) -> None:
        """One update at `lr_multiplier` of each peak learning rate, and the gradients are forgotten."""
        for optimizer, peak in self._peaks:
            for group in optimizer.param_groups:
                group["lr"] = peak * lr_multiplier
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def build_optimizers(model: PreTrainedModel, train: TrainParams) -> Optimizers:
    """Optimizers over all of the model's trained parameters; `stages.train.optim.roles` says which takes which."""
    params, trained = train.optimizer, list(weights(model))
    by_muon = [weight.parameter for weight in trained if is_by_muon(weight.role, params)]
    others = [weight for weight in trained if not is_by_muon(weight.role, params)]
    peaks: list[tuple[torch.optim.Optimizer, float]] = []
    if by_muon:
        dtype = torch.bfloat16 if train.precision == "bf16" else torch.float32
        muon = Muon(by_muon, params.muon_learning_rate, params.momentum, params.weight_decay, dtype)
        peaks.append((muon, params.muon_learning_rate))
    decayed = [weight.parameter for weight in others if weight.role in DECAYED]
    undecayed = [weight.parameter for weight in others if weight.role not in DECAYED]
    groups = [(decayed, params.weight_decay), (undecayed, 0.0)]
    peaks.append((_adamw(groups, params), params.adamw_learning_rate))
    return Optimizers(peaks)


def is_by_muon(role: Role, params: OptimizerParams) -> bool:
    """Whether Muon trains the weights of a role."""
    return params.name == "muon" and role in BY_MUON


def _adamw(groups: list[tuple[list[nn.Parameter], float]], params: OptimizerParams) -> torch.optim.AdamW:
    """AdamW over groups of parameters, each with its weight decay; an empty one is left out."""
    first, second = params.betas
    return torch.optim.AdamW(
        [{"params": parameters, "weight_decay": decay} for parameters, decay in groups if parameters],
        lr=params.adamw_learning_rate,
        betas=(first, second),
        eps=params.epsilon,
        fused=True,
    )
