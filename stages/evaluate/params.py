"""How a model is evaluated."""

from typing import Annotated

from pydantic import Field

from stages.runtime.section import Section


class EvaluateParams(Section):
    """The section `evaluate` of params.yaml."""

    context_length: Annotated[int, Field(ge=2)] | None
    """Tokens in a window; null is all that the model's positions allow."""
    stride: Annotated[int, Field(ge=1)] | None
    """Tokens by which a window advances; null is three quarters of it. Smaller: more context for each token, a
    lower loss, more time (context_length / stride times a single pass)."""
    bootstrap_resamples: Annotated[int, Field(ge=100)]
    """Bootstrap resamples for the 95 % intervals."""
    seed: Annotated[int, Field(ge=0)]
    """Of the bootstrap."""
