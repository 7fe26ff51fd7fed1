"""The texts that a trained model generates, and how they are sampled."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from stages.runtime.section import FileName, Section

LanguageName: TypeAlias = Literal["python", "text"]
"""The keys of `LANGUAGES` in stages/evaluate/generate/languages.py."""

HeldOutLanguage: TypeAlias = Literal["python", "text", "mixed"]
"""One language for all documents, or `mixed`: each document's name decides."""


class Sampling(Section):
    """How the tokens of a text are drawn."""

    temperature: Annotated[float, Field(ge=0, le=10)]
    """Divides the logits: 0 always takes the most likely token, 1 samples the model's own distribution. Choosing the
    temperature with the best score is selection on the test set: say so if you report it."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Sample among the most likely tokens that together have this probability (nucleus sampling, Holtzman et al.
    2020)."""
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)]
    """The limit of a completion. Code that completes a header and reaches it is cut back to its last whole line; other
    completions are kept."""


class HeaderParams(Sampling):
    """The completions of held-out headers."""

    count: Annotated[int, Field(ge=0, le=10_000)]
    """Headers to complete, from as many documents as possible. More take longer and give a more precise share that
    parses."""
    header_bytes: Annotated[int, Field(ge=0)]
    """The prompt contains at most this many bytes of the file before the header, in whole lines."""


class ProblemSet(Section):
    """A file of problems in HumanEval's or MBPP's format."""

    path: FileName
    """A .jsonl or .jsonl.gz file, in a dep of the stage such as `evaluation/problems/`."""
    language: LanguageName
    """The programming language of the problems."""
    stop: list[Annotated[str, Field(min_length=1)]] | None
    """A completion is cut before the first of these strings. Null: the language's own."""


class ProblemParams(Sampling):
    """The completions of code problems, which `score` runs."""

    sets: list[ProblemSet]
    """Files of problems; may be empty."""
    samples: Annotated[int, Field(ge=1)]
    """Completions per problem; pass@k needs at least k."""


class GenerateParams(Section):
    """The section `generate` of params.yaml."""

    seed: Annotated[int, Field(ge=0)]
    """Seed for choosing headers and sampling; each sample's seed is derived from it and the sample's name."""
    width: Annotated[int, Field(ge=1)]
    """Texts generated at once. Another width changes the last bits of logits and, rarely, a sample."""
    language: HeldOutLanguage
    """Language of the held-out documents. It defines headers, the end of a sample, and whether it parses. mixed: python
    for .py and .pyi, text for all others."""
    headers: HeaderParams
    """The completions of held-out headers."""
    problems: ProblemParams
    """The completions of code problems."""
