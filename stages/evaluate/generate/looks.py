"""Measures texts without running them: do they parse and compile, do they repeat themselves or the training data."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from transformers import PreTrainedTokenizerFast

from stages.evaluate.generate.languages.known import LANGUAGES
from stages.evaluate.generate.overlap import longest_shared
from stages.evaluate.generate.params import LanguageName
from stages.formats.evaluation.generation import Ended, Looks
from stages.formats.reports import SIGNIFICANT_DIGITS, significant
from stages.formats.tokens import TokenStore

NGRAM = 4
"""Tokens of the passages whose repetition is counted."""


@dataclass(frozen=True, slots=True)
class Text:
    """Something that the model wrote."""

    kind: Literal["header", "problem"]
    name: str
    """Source, path and line; or the task_id."""
    sample: int
    prompt: str
    """What the model read."""
    text: str
    """What it wrote."""
    whole: str
    """The function: the last lines of the prompt, or all of it, and the text."""
    ended: Ended
    language: LanguageName


@dataclass(frozen=True, slots=True)
class Look:
    """The measurements of a text."""

    text: Text
    tokens: int
    """Of the text, tokenized again."""
    parses: bool | None
    """Whether the whole parses; None for a language without a grammar."""
    compiles: bool | None
    """Whether the whole compiles; None for a language without a compiler here."""
    repeated: float
    """Share of the text's 4-grams of tokens that occurred before in it."""
    longest_shared: int
    """Tokens of the text's longest passage that occurs in the training data."""


def look_at(texts: Sequence[Text], tokenizer: PreTrainedTokenizerFast, store: TokenStore) -> list[Look]:
    """Measure each text; `store` holds the training data."""
    encoded = tokenizer.backend_tokenizer.encode_batch([one.text for one in texts], add_special_tokens=False)
    ids = [encoding.ids for encoding in encoded]
    return [
        Look(
            text=text,
            tokens=len(own),
            parses=_checked(LANGUAGES[text.language].parses, text),
            compiles=_checked(LANGUAGES[text.language].compiles, text),
            repeated=repeated_share(own),
            longest_shared=shared,
        )
        for text, own, shared in zip(texts, ids, longest_shared(store, ids), strict=True)
    ]


def _checked(check: Callable[[str], bool] | None, text: Text) -> bool | None:
    return check(text.whole) if check else None


def repeated_share(ids: Sequence[int]) -> float:
    """Of a text's 4-grams of tokens, the share that occurred before in it; 0 where it has none."""
    ngrams = [tuple(ids[start : start + NGRAM]) for start in range(len(ids) - NGRAM + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def summed_up(looks: Sequence[Look]) -> Looks:
    """The report's figures: shares and medians over the texts."""
    ends = [look.text.ended for look in looks]
    return Looks(
        texts=len(looks),
        parsed_share=mean(look.parses for look in looks),
        compiled_share=mean(look.compiles for look in looks),
        repeated_share=mean(look.repeated for look in looks),
        longest_shared_median=float(median(look.longest_shared for look in looks)) if looks else None,
        longest_shared_maximum=max((look.longest_shared for look in looks), default=None),
        ended={end: ends.count(end) for end in sorted(set(ends))},
    )


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are not None, rounded; None if all are."""
    known = [value for value in values if value is not None]
    return significant(fmean(known)) if known else None


def looks_csv(looks: Iterable[Look]) -> str:
    """A row for each text, with a heading."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(("kind", "name", "sample", "ended", "tokens", "parses", "compiles", "repeated", "longest_shared"))
    for one in looks:
        text = one.text
        row = (text.kind, text.name, text.sample, text.ended, one.tokens, one.parses, one.compiles)
        writer.writerow((*row, f"{one.repeated:.{SIGNIFICANT_DIGITS}g}", one.longest_shared))
    return output.getvalue()
