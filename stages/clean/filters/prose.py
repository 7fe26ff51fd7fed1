"""The rules of Gopher and C4 for web text, as measures: any of them can have a minimum or a maximum.

- Gopher: Rae et al. 2021, Scaling Language Models, appendix A.1.1 (quality and repetition)
- C4: Raffel et al. 2020, Exploring the Limits of Transfer Learning, section 2.2

Words are what white space separates, as in both papers. So the measures of words mean little in scripts that are
written without spaces, and `stop_words`, `stop_word_share` are those of English. Shares of lines are of those that
are not empty. C4 drops lines as well as pages; here a page is kept whole or dropped.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, product
from typing import TYPE_CHECKING, Literal, Self, get_args

from stages.clean.filtering import DocumentText, Drop, Feature, Filter, Measure, above, below
from stages.clean.quality.repetition import NumberedWords, RepetitionMeasure, repetition
from stages.runtime.section import Section

if TYPE_CHECKING:
    import pandas as pd

STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
"""Gopher's: a page of English has at least two of them."""
STOP_WORDS_IN_ANY_CASE = {
    "".join(case) for word in STOP_WORDS for case in product(*zip(word, word.upper(), strict=True))
}

BULLETS = "-*\u2022\u2023\u25cf\u25e6"
ELLIPSES = ("...", "\u2026")
ENDS_OF_SENTENCES = ".!?\"'\u201d\u2019\u3002\uff01\uff1f\u061f\u0964"
"""C4's period, exclamation mark, question mark and closing quotes, and those of Chinese, Arabic and Hindi."""

SENTENCE = re.compile(
    # A pattern that begins with a set of characters, not with a repetition or a choice, is found several times faster.
    r"[.!?\u3002\uff01\uff1f\u061f\u0964](?:(?<=[.!?])[\"')\u201d\u2019]*(?!\S)"
    r"|(?<![.!?])[\u3002\uff01\uff1f\u061f\u0964]*)"
)
SHORT_LINE = 3
"""Words: C4 drops lines with fewer."""

WordMeasure = Literal[
    "words",
    "word_length_mean",
    "symbols_per_word",
    "alphabetic_word_share",
    "stop_words",
    "stop_word_share",
    "sentences",
    "curly_brackets",
    "lorem_ipsum",
    "bullet_line_share",
    "ellipsis_line_share",
    "terminal_punctuation_line_share",
    "short_line_share",
    "javascript_line_share",
]

ProseMeasure = Literal[WordMeasure, RepetitionMeasure]

MEASURES: tuple[ProseMeasure, ...] = tuple(
    name for kinds in get_args(ProseMeasure) for name in (get_args(kinds) or (kinds,))
)


class ProseRules(Section):
    """Limits by measure. With none the columns are there and nothing is dropped."""

    minimum: dict[ProseMeasure, float]
    """Drop a document that is below; Gopher: `{words: 50, word_length_mean: 3, alphabetic_word_share: 0.8, stop_words:
    2}`, C4: `{sentences: 3, terminal_punctuation_line_share: 1}`."""
    maximum: dict[ProseMeasure, float]
    """Drop a document that is above; Gopher: `{words: 100000, word_length_mean: 10, symbols_per_word: 0.1, ...}`, C4:
    `{curly_brackets: 0, lorem_ipsum: 0}`."""


class Prose(Filter):
    """What tells running text from lists, menus, tables, placeholders and repetition."""

    prose: ProseRules | None
    """The rules of Gopher and C4; null measures nothing."""

    @classmethod
    def measurement(cls, parameters: Self) -> Measure | None:
        """As `Filter.measurement`."""
        return None if parameters.prose is None else cls.measure

    @staticmethod
    def measure(text: DocumentText) -> dict[str, Feature]:
        """Every measure."""
        lines = list(filter(None, map(str.split, text.lines)))
        words = NumberedWords(chain.from_iterable(lines))
        return {**of_words(text, words), **of_lines(text, lines), **repetition(text.text, words)}

    def drops(self, features: "pd.DataFrame", seed: int) -> Iterator[Drop]:
        """As `Filter.drops`."""
        if self.prose is None:
            return
        for name in MEASURES:
            yield from below(features, name, self.prose.minimum.get(name))
            yield from above(features, name, self.prose.maximum.get(name))


def of_words(text: DocumentText, words: NumberedWords) -> dict[str, Feature]:
    """What is counted over the whole text."""
    import numpy as np  # slow, and the parameters are checked without it

    counts = np.bincount(words.numbers)
    count = max(len(words.numbers), 1)
    stops: Counter[str] = Counter()
    for word in STOP_WORDS_IN_ANY_CASE & words.distinct.keys():
        stops[word.lower()] += int(counts[words.distinct[word]])
    symbols = text.text.count("#") + sum(map(text.text.count, ELLIPSES))
    alphabetic = [number for word, number in words.distinct.items() if word.isalpha() or any(map(str.isalpha, word))]
    return {
        "words": len(words.numbers),
        "word_length_mean": int(words.ends[-1]) / count,
        "symbols_per_word": symbols / count,
        "alphabetic_word_share": int(counts[alphabetic].sum()) / count,
        "stop_words": len(stops),
        "stop_word_share": stops.total() / count,
        "sentences": len(SENTENCE.findall(text.text)),
        "curly_brackets": text.text.count("{") + text.text.count("}"),
        "lorem_ipsum": text.lowered.count("lorem ipsum"),
    }


def of_lines(text: DocumentText, lines: Sequence[Sequence[str]]) -> dict[str, Feature]:
    """Shares of the lines that are not empty, given by their words."""
    count = max(len(lines), 1)
    last = [line[-1] for line in lines]
    closed = [word for word in last if word[-1] in ENDS_OF_SENTENCES]
    has_ellipsis = any(map(text.text.__contains__, ELLIPSES))
    ellipses = sum(word.endswith(ELLIPSES) for word in last) if has_ellipsis else 0
    closed_by_ellipsis = sum(word.endswith(ELLIPSES) for word in closed) if has_ellipsis else 0
    scripts = sum("javascript" in line.lower() for line in text.lines) if "javascript" in text.lowered else 0
    return {
        "bullet_line_share": len([line for line in lines if line[0][0] in BULLETS]) / count,
        "ellipsis_line_share": ellipses / count,
        "terminal_punctuation_line_share": (len(closed) - closed_by_ellipsis) / count,
        "short_line_share": len([line for line in lines if len(line) < SHORT_LINE]) / count,
        "javascript_line_share": scripts / count,
    }
