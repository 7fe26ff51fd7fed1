"""The optimizers of a model: built as the section `train.optimizer` says, their learning rates set at each step."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel

from stages.train.optim.roles import weights
from stages.train.optim.settings import OptimizerSettings, Precision

Rule: TypeAlias = Callable[[dict[str, Any], dict[Tensor, dict[str, Tensor]]], None]
"""Updates the parameters of a group, of which it is given the settings and the state."""


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


def build_optimizers(model: PreTrainedModel, settings: OptimizerSettings, precision: Precision) -> Optimizers:
    """Optimizers over all of the model's trained parameters; their roles say which takes which."""
    built, peaks = settings.build(list(weights(model)), precision), settings.peaks
    return Optimizers((optimizer, peaks[column]) for column, optimizer in built.items())


class ByRule(torch.optim.Optimizer):
    """An optimizer whose arithmetic is a function, which can be in a module that does not import torch."""

    def __init__(self, params: Iterable[Tensor], settings: Mapping[str, float], rule: Rule) -> None:
        super().__init__(params, dict(settings))
        self._rule = rule

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every group."""
        for group in self.param_groups:
            self._rule(group, self.state)
