"""What every optimizer of this package is: its settings in params.yaml, its peak learning rates, and how it is built.

`flows` checks params.yaml before anything runs, so the modules of settings import torch only where they build.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from stages.runtime.section import Section

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from stages.train.optim.optimizers import TrainedWeight

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
        """Optimizers that train all of the weights together, by column; `precision` is of the matrix products."""
