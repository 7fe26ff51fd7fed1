"""The optimizers of a model, made of their settings, and stepped together."""

from collections.abc import Callable, Iterator

import torch
from torch.optim import Optimizer
from transformers import PreTrainedModel

from stages.train.compute.optim.muon import Muon
from stages.train.compute.optim.roles import weights
from stages.train.compute.optim.settings import OptimizerSettings, Precision

OURS: dict[str, Callable[..., Optimizer]] = {"Muon": Muon}
"""Classes by name that are not torch's, or instead of torch's."""


class Optimizers:
    """The optimizers of one model. Each of their groups holds its peak learning rate, `peak_lr`."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self._optimizers = optimizers

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self._optimizers)

    def step(self, lr_multiplier: float) -> None:
        """One update at `lr_multiplier` of each peak learning rate, and the gradients are forgotten."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * lr_multiplier
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def build_optimizers(model: PreTrainedModel, settings: OptimizerSettings, precision: Precision) -> Optimizers:
    """Optimizers over all of the model's trained parameters; their roles say which takes which."""
    left, optimizers = list(weights(model)), []
    # Those that name their weights choose first.
    for spec in sorted(settings.specs(precision).values(), key=lambda spec: spec.roles is None):
        trained = [weight for weight in left if spec.roles is None or weight.role in spec.roles]
        left = [weight for weight in left if weight not in trained]
        groups = [
            {"params": parameters, "weight_decay": decay, "peak_lr": spec.peak_lr}
            for decay, parameters in (
                (settings.weight_decay, [weight.parameter for weight in trained if weight.is_decayed]),
                (0.0, [weight.parameter for weight in trained if not weight.is_decayed]),
            )
            if parameters
        ]
        if groups:
            kind = OURS.get(spec.kind) or getattr(torch.optim, spec.kind)
            optimizers.append(kind(groups, lr=spec.peak_lr, **spec.arguments))
    return Optimizers(optimizers)
