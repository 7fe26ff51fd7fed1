"""How a model is evaluated, and how its samples are generated."""

from typing import Annotated

from pydantic import Field

from stages.runtime.section import Section


class SampleParams(Section):
    """The completions of held-out function headers."""

    count: Annotated[int, Field(ge=0, le=10_000)]
    """Headers to complete; one per document first. More: a more precise share that parses, and more time."""
    temperature: Annotated[float, Field(ge=0, le=10)]
    """Divides the logits: 0 takes the most likely token each time, 1 samples the model's own distribution."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Samples among the most likely tokens that together have this probability (nucleus sampling, Holtzman et
    al. 2020)."""
    max_new_tokens: Annotated[int, Field(ge=1)]
    """A completion that has not left the function by then is cut after its last whole line."""
    header_bytes: Annotated[int, Field(ge=0)]
    """At most so many bytes of the file before the header are in the prompt, in whole lines."""


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
    """Of the bootstrap, the choice of headers and their completions."""
    samples: SampleParams
    """The completions of held-out function headers."""
