"""What a trained model is asked to write, and how its samples are drawn."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from stages.runtime.section import FileName, Section

LanguageName: TypeAlias = Literal["python", "text"]
"""The keys of `LANGUAGES` in stages/evaluate/generate/languages.py, where another language is added."""

HeldOutLanguage: TypeAlias = Literal["python", "text", "mixed"]
"""One language for all documents, or (`mixed`) the language that each document's name says."""

NonEmptyText = Annotated[str, Field(min_length=1)]

MAX_NEW_TOKENS = 1_000_000


class Sampling(Section):
    """How the tokens of a text are drawn."""

    temperature: Annotated[float, Field(ge=0, le=10)]
    """Divides the logits: 0 takes the most likely token each time, 1 samples the model's own distribution. Choosing the
    one with the best score is selection on the test set: say so where you report it."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Samples among the most likely tokens that together have this probability (nucleus sampling, Holtzman et
    al. 2020)."""
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)]
    """A completion that reaches this limit is cut back to its last whole line if it continues a header of code, and
    kept if it is prose or answers a problem."""


class HeaderParams(Sampling):
    """The completions of held-out headers."""

    count: Annotated[int, Field(ge=0, le=10_000)]
    """Headers to complete; one per document first. More give a more precise share that parses, and take longer."""
    header_bytes: Annotated[int, Field(ge=0)]
    """Bytes of the file before the header that the prompt holds at most, in whole lines."""


class ProblemSet(Section):
    """Problems of a file in HumanEval's or MBPP's format."""

    path: FileName
    """A .jsonl or .jsonl.gz file, below a dep of the stage such as `evaluation/problems/`."""
    language: LanguageName
    """The programming language of the problems."""
    stop: list[NonEmptyText] | None
    """A completion is cut before the first of these strings; null takes the language's own."""


class ProblemParams(Sampling):
    """The completions of code problems, which `score` runs."""

    sets: list[ProblemSet]
    """Files of problems; empty: none are completed."""
    samples: Annotated[int, Field(ge=1)]
    """Completions of each problem; pass@k needs at least k."""


class GenerateParams(Section):
    """The section `generate` of params.yaml."""

    seed: Annotated[int, Field(ge=0)]
    """Seed for choosing headers and sampling; each sample has its own seed, made from this one and its name."""
    width: Annotated[int, Field(ge=1)]
    """Texts written at once. Another width changes a logit's last bits, and with them, rarely, a sample."""
    language: HeldOutLanguage
    """Language of the held-out documents. It decides what a header is, where a sample ends, and whether it parses.
    mixed: python for .py and .pyi, text for all others."""
    headers: HeaderParams
    """The completions of held-out headers."""
    problems: ProblemParams
    """The completions of code problems."""
