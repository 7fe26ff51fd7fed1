"""Builds the optimizers of a model from their settings, and steps them together."""

from collections.abc import Callable, Iterator

import torch
from torch.optim import Optimizer
from transformers import PreTrainedModel

from stages.train.compute.optim.muon import Muon
from stages.train.compute.optim.roles import weights
from stages.train.compute.optim.settings import OptimizerSettings, Precision

OURS: dict[str, Callable[..., Optimizer]] = {"Muon": Muon}
"""Classes by name that torch does not have, or that replace torch's."""


class Optimizers:
    """The optimizers of one model. Each parameter group has its peak learning rate, `peak_lr`."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self._optimizers = optimizers

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self._optimizers)

    def step(self, lr_multiplier: float) -> None:
        """Update the weights at `lr_multiplier` times each peak learning rate, and clear the gradients."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * lr_multiplier
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def build_optimizers(model: PreTrainedModel, settings: OptimizerSettings, precision: Precision) -> Optimizers:
    """Optimizers over all of the model's trained parameters, assigned by their roles."""
    left, optimizers = list(weights(model)), []
    # Optimizers with roles choose first.
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
