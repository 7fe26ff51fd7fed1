"""How a model is evaluated."""

from typing import Annotated

from pydantic import Field

from stages.runtime.section import Section

SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
"""The name of a held-out set: also the key of its metrics, and a file's name."""


class EvaluateParams(Section):
    """The section `evaluate` of params.yaml."""

    context_length: Annotated[int, Field(ge=2)] | None
    """Tokens in a window; null is all that the model's positions allow."""
    stride: Annotated[int, Field(ge=1)] | None
    """Tokens by which a window advances; null is three quarters of it. Smaller: more context for each token, a
    lower loss, more time (context_length / stride times a single pass)."""
    sets: dict[SetName, str]
    """Further held-out sets, by name: a file or a folder of documents. `.jsonl` and `.parquet` hold a document in each
    row (`text`, and `source` and `path` if they are there); any other file is a document."""
    baselines: list[str]
    """Models that are scored on the same documents, each with its own tokenizer: folders, or commits on the Hub
    (owner/name@COMMIT)."""
    bootstrap_resamples: Annotated[int, Field(ge=100)]
    """Bootstrap resamples for the 95 % intervals."""
    seed: Annotated[int, Field(ge=0)]
    """Seed of the bootstrap."""
