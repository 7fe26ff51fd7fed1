"""What every optimizer of this package is: its settings in params.yaml, its peak learning rates, and how it is built.

`flows` checks params.yaml before anything runs, so the modules of settings import torch only where they build.
AdamW (Loshchilov and Hutter 2019), torch's own, is here too: for every weight, or for what another optimizer leaves to
it.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from stages.runtime.section import Section

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

    from stages.train.compute.optim.optimizers import Optimizers, TrainedWeight


Rate = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Precision = Literal["auto", "bf16", "fp32"]


class OptimizerSettings(Section):
    """How gradients become updates: the section `train.optimizer`, whose `name` says which optimizer it is."""

    weight_decay: Annotated[float, Field(ge=0)]
    """Decoupled, on what activations are multiplied with; embeddings, norms, biases and tables are not decayed."""

    @property
    @abstractmethod
    def peaks(self) -> dict[str, float]:
        """The peak learning rate of each of torch's optimizers that `build` makes, by its column in the curves."""

    @abstractmethod
    def build(self, weights: Sequence["TrainedWeight"], precision: Precision) -> dict[str, "Optimizer"]:
        """Optimizers that train all of the weights together, by column; `precision` applies to matrix products."""


def build_optimizers(model: "PreTrainedModel", settings: OptimizerSettings, precision: Precision) -> "Optimizers":
    """Optimizers over all of the model's trained parameters; their roles say which takes which."""
    from stages.train.compute.optim.optimizers import Optimizers, weights

    built, peaks = settings.build(list(weights(model)), precision), settings.peaks
    return Optimizers((optimizer, peaks[column]) for column, optimizer in built.items())


class WithAdamW(OptimizerSettings):
    """The settings of AdamW."""

    adamw_learning_rate: Rate
    """Peak rate of AdamW."""
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
    """AdamW's decay rates of the first and the second moment."""
    epsilon: Annotated[float, Field(gt=0)]
    """AdamW's denominator floor."""

    def adamw(self, weights: Sequence["TrainedWeight"]) -> "Optimizer":
        """AdamW over some weights: a group of those that are decayed and one of the others, without empty groups."""
        import torch

        decayed = [weight.parameter for weight in weights if weight.is_decayed]
        others = [weight.parameter for weight in weights if not weight.is_decayed]
        groups = ((decayed, self.weight_decay), (others, 0.0))
        first, second = self.betas
        return torch.optim.AdamW(
            [{"params": parameters, "weight_decay": decay} for parameters, decay in groups if parameters],
            lr=self.adamw_learning_rate,
            betas=(first, second),
            eps=self.epsilon,
            fused=True,
        )


class AdamW(WithAdamW):
    """AdamW for every weight."""

    name: Literal["adamw"]
    """AdamW for everything."""

    @property
    def peaks(self) -> dict[str, float]:
        """One column."""
        return {"adamw": self.adamw_learning_rate}

    def build(self, weights: Sequence["TrainedWeight"], precision: Precision) -> dict[str, "Optimizer"]:
        """One optimizer."""
        return {"adamw": self.adamw(weights)}
