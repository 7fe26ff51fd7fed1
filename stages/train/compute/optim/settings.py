"""The section `train.optimizer`: settings of optimizers, and which of them trains which weights.

params.yaml is checked before anything runs, so nothing here imports torch; `build.py` constructs the optimizers.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from stages.runtime.section import Section

Rate = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Precision = Literal["auto", "bf16", "fp32"]

Role = Literal["matrix", "experts", "head", "router", "embedding", "other"]
"""What a weight does in the model (`roles.py`)."""


@dataclass(frozen=True)
class OptimizerSpec:
    """One optimizer of a model: its class, its settings, the weights that it trains."""

    kind: str
    """A class of `torch.optim`, or of `build.OURS`."""
    peak_lr: float
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the class, besides the learning rate and the weight decay."""
    roles: Sequence[Role] | None = None
    """The weights that it trains; None: all that no other optimizer takes."""


class OptimizerSettings(Section):
    """How gradients become updates; `name` selects the optimizer."""

    weight_decay: Annotated[float, Field(ge=0)]
    """Decoupled, for weights that multiply activations and for embeddings; norms, biases and tables are not decayed."""

    @abstractmethod
    def specs(self, precision: Precision) -> dict[str, OptimizerSpec]:
        """The optimizers by their columns in the curves; `precision` is that of matrix products."""

    @property
    def peaks(self) -> dict[str, float]:
        """The peak learning rate of each optimizer by its column in the curves."""
        return {column: spec.peak_lr for column, spec in self.specs("fp32").items()}


class WithAdamW(OptimizerSettings):
    """The settings of torch's AdamW (Loshchilov and Hutter 2019)."""

    adamw_learning_rate: Rate
    """Peak rate of AdamW."""
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
    """AdamW's decay rates of the first and the second moment."""
    epsilon: Annotated[float, Field(gt=0)]
    """AdamW's denominator floor."""

    def specs(self, precision: Precision) -> dict[str, OptimizerSpec]:
        """AdamW for all weights that no other optimizer takes."""
        arguments = {"betas": tuple(self.betas), "eps": self.epsilon, "fused": True}
        return {"adamw": OptimizerSpec("AdamW", self.adamw_learning_rate, arguments)}


class AdamWSettings(WithAdamW):
    """AdamW for every weight."""

    name: Literal["adamw"]
    """AdamW for everything."""


class MuonSettings(WithAdamW):
    """Muon for the hidden matrices, AdamW for the rest."""

    name: Literal["muon"]
    """Muon for the hidden matrices and AdamW for the rest."""
    muon_learning_rate: Rate
    """Peak rate of Muon, scaled so that AdamW's values carry over."""
    momentum: Fraction
    """Muon's momentum."""

    def specs(self, precision: Precision) -> dict[str, OptimizerSpec]:
        """Muon's authors leave embeddings, heads and routers to AdamW (`roles.py`)."""
        arguments = {"momentum": self.momentum, "precision": precision}
        muon = OptimizerSpec("Muon", self.muon_learning_rate, arguments, roles=("matrix", "experts"))
        return super().specs(precision) | {"muon": muon}
