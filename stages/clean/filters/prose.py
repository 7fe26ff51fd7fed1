"""Filters of running text: by the language that it is written in, and by the rules of Gopher and C4 for web text.

The language is that which py3langid identifies, offline: its model is in the package. The rules are measures, any of
which can have a minimum or a maximum:

- Gopher: Rae et al. 2021, Scaling Language Models, appendix A.1.1 (quality and repetition)
- C4: Raffel et al. 2020, Exploring the Limits of Transfer Learning, section 2.2

Words are what white space separates, as in both papers. So the measures of words mean little in scripts that are
written without spaces, and `stop_words`, `stop_word_share` are those of English. Shares of lines are of those that
are not empty. C4 drops lines as well as pages; here a page is kept whole or dropped.

How much is repeated (Gopher's table A1) is measured of lines, of paragraphs and of n-grams of words:

    top_2_gram_character_share        of the n-gram that is repeated most often, all its occurrences; n = 2, 3, 4
    duplicate_5_gram_character_share  of n-grams that were there before, overlaps counted once; n = 5 ... 10

Characters of n-grams are those of their words. Words are numbered once, and n-grams compared as numbers. Only those
that occur several times are kept, since only they can be part of longer ones that do.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import Field

from stages.clean.filtering import DocumentText, Drop, Feature, Features, Filter, Measure, Share, above, below
from stages.runtime.section import Section

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

EXCERPT = 1000
"""Characters that are read of the start, the middle and the end of a document: more of it would cost a second per 8 MB
and change almost no answer."""

DIGITS = 4
"""Decimals that are kept of the confidence: its last bits differ between processors."""

STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
"""Gopher's: a page of English has at least two of them."""
STOP_WORDS_IN_ANY_CASE = {
    "".join(case) for word in STOP_WORDS for case in itertools.product(*zip(word, word.upper(), strict=True))
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

PARAGRAPH = re.compile(r"\n\n+")

TOP_SIZES = (2, 3, 4)
DUPLICATE_SIZES = (5, 6, 7, 8, 9, 10)

ProseMeasure = Literal[
    "words", "word_length_mean", "symbols_per_word", "alphabetic_word_share", "stop_words", "stop_word_share",
    "sentences", "curly_brackets", "lorem_ipsum", "bullet_line_share", "ellipsis_line_share",
    "terminal_punctuation_line_share", "short_line_share", "javascript_line_share", "duplicate_line_share",
    "duplicate_line_character_share", "duplicate_paragraph_share", "duplicate_paragraph_character_share",
    "top_2_gram_character_share", "top_3_gram_character_share", "top_4_gram_character_share",
    "duplicate_5_gram_character_share", "duplicate_6_gram_character_share", "duplicate_7_gram_character_share",
    "duplicate_8_gram_character_share", "duplicate_9_gram_character_share", "duplicate_10_gram_character_share",
]  # fmt: skip

MEASURES: tuple[ProseMeasure, ...] = get_args(ProseMeasure)


class NaturalLanguageSettings(Section):
    """Which languages are kept. With both values null the columns are there and nothing is dropped."""

    languages: Annotated[list[Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]], Field(min_length=1)] | None
    """Keep the documents in these languages (ISO 639, such as `en`); null keeps all."""
    confidence_minimum: Share | None
    """Drop a document whose language is less certain: very short texts, tables, mixtures."""


class NaturalLanguage(Filter):
    """Columns `natural_language` (empty if a document has no letters) and `natural_language_confidence`.

    The column `language` is the programming language, by the file's name.
    """

    natural_language: NaturalLanguageSettings | None
    """The language of running text; null measures nothing."""

    @classmethod
    def measurement(cls, parameters: Self) -> Measure | None:
        """As `Filter.measurement`."""
        return None if parameters.natural_language is None else cls.measure

    @staticmethod
    def measure(text: DocumentText) -> dict[str, Feature]:
        """The most likely language and its probability."""
        read = excerpt(text.text)
        language, confidence = identifier().classify(read) if any(map(str.isalpha, read)) else ("", 0.0)
        return {"natural_language": language, "natural_language_confidence": round(float(confidence), DIGITS)}

    def drops(self, features: Features, seed: int) -> Iterator[Drop]:
        """As `Filter.drops`."""
        if (chosen := self.natural_language) is None:
            return
        if chosen.languages is not None:
            yield "natural_language_other", ~features["natural_language"].isin(chosen.languages)
        yield from below(features, "natural_language_confidence", chosen.confidence_minimum)


def excerpt(text: str) -> str:
    """The part of a text that is read: all of it if it is short."""
    if len(text) <= 3 * EXCERPT:
        return text
    middle = (len(text) - EXCERPT) // 2
    return "\n".join((text[:EXCERPT], text[middle : middle + EXCERPT], text[-EXCERPT:]))


@cache
def identifier() -> Any:
    """The model, unpacked once in a process (about a second)."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


class ProseRules(Section):
    """Limits by measure. With none the columns are there and nothing is dropped."""

    minimum: dict[ProseMeasure, float]
    """Drop a document that is below; Gopher: `{words: 50, word_length_mean: 3, alphabetic_word_share: 0.8, stop_words:
    2}`, C4: `{sentences: 3, terminal_punctuation_line_share: 1}`."""
    maximum: dict[ProseMeasure, float]
    """Drop a document that is above; Gopher: `{words: 100000, word_length_mean: 10, symbols_per_word: 0.1, ...}`, C4:
    `{curly_brackets: 0, lorem_ipsum: 0}`."""


class Prose(Filter):
    """Measures that tell running text from lists, menus, tables, placeholders and repetition."""

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
        words = NumberedWords(itertools.chain.from_iterable(lines))
        return {**of_words(text, words), **of_lines(text, lines), **repetition(text.text, words)}

    def drops(self, features: Features, seed: int) -> Iterator[Drop]:
        """As `Filter.drops`."""
        if self.prose is None:
            return
        for name in MEASURES:
            yield from below(features, name, self.prose.minimum.get(name))
            yield from above(features, name, self.prose.maximum.get(name))


class NumberedWords:
    """The words of a text in their order, each a number: equal words have the same."""

    def __init__(self, words: Iterable[str]) -> None:
        import numpy as np  # slow, and the parameters are checked without it

        number_of: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self.numbers: Numbers = np.fromiter(map(number_of.__getitem__, words), dtype=np.int64)
        """Shape (words,)."""
        self.distinct = dict(number_of)
        """Each word with its number, which says how many others came before it first."""
        lengths = np.fromiter(map(len, self.distinct), dtype=np.int64, count=len(self.distinct))
        self.ends: Numbers = np.cumulative_sum(lengths[self.numbers], include_initial=True)
        """Characters of the first n words; shape (words + 1,)."""


def of_words(text: DocumentText, words: NumberedWords) -> dict[str, Feature]:
    """Counts over the whole text."""
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


def repetition(text: str, words: NumberedWords) -> dict[str, Feature]:
    """How much of a text is repeated."""
    import numpy as np

    characters = max(len(text), 1)
    features: dict[str, Feature] = {}
    lines = list(filter(None, text.strip().split("\n"))) or [""]
    for name, parts in (("line", lines), ("paragraph", PARAGRAPH.split(text.strip()))):
        seen = set(parts)
        # Each part but its first occurrence.
        features[f"duplicate_{name}_share"] = (len(parts) - len(seen)) / len(parts)
        features[f"duplicate_{name}_character_share"] = (sum(map(len, parts)) - sum(map(len, seen))) / characters

    numbers = words.numbers
    starts = np.flatnonzero(np.bincount(numbers)[numbers] > 1)
    grams = numbers[starts]
    for size in range(2, DUPLICATE_SIZES[-1] + 1):
        if len(starts):  # in most texts nothing long is repeated
            # What is repeated begins and ends with something repeated that is one word shorter.
            is_repeated = np.zeros(len(numbers) + 1, dtype=bool)
            is_repeated[starts] = True
            goes_on = is_repeated[starts + 1]
            starts, grams = starts[goes_on], grams[goes_on]
            starts, grams = repeated(starts, grams * (len(numbers) + 1) + numbers[starts + size - 1])
        kind, found = ("top", top) if size in TOP_SIZES else ("duplicate", duplicates)
        features[f"{kind}_{size}_gram_character_share"] = found(starts, grams, words.ends, size) / characters
    return features


def repeated(starts: "Numbers", grams: "Numbers") -> tuple["Numbers", "Numbers"]:
    """Keep the n-grams that occur several times, in their order, renumbered from 0. Each n-gram is given by its start
    and its number."""
    import numpy as np

    order = np.argsort(grams)
    ordered = grams[order]
    is_as_before = np.zeros(len(order) + 1, dtype=bool)
    np.equal(ordered[1:], ordered[:-1], out=is_as_before[1:-1])
    is_repeated = is_as_before[:-1] | is_as_before[1:]
    numbers = np.full(len(order), -1)
    numbers[order[is_repeated]] = np.cumsum(~is_as_before[:-1][is_repeated]) - 1
    kept = np.flatnonzero(numbers >= 0)
    return starts[kept], numbers[kept]


def top(starts: "Numbers", grams: "Numbers", ends: "Numbers", size: int) -> int:
    """Characters of all occurrences of the n-gram that is repeated most often; of several the longest. 0: none is."""
    import numpy as np

    if not len(grams):
        return 0
    counts = np.bincount(grams)
    most = int(counts.max())
    longest = starts[counts[grams] == most]
    return most * int((ends[longest + size] - ends[longest]).max())


def duplicates(starts: "Numbers", grams: "Numbers", ends: "Numbers", size: int) -> int:
    """Characters of the n-grams that were there before; the search goes on behind each one that is found."""
    lengths = ends[starts + size] - ends[starts]
    seen: set[int] = set()
    found = free = 0
    for start, gram, length in zip(starts.tolist(), grams.tolist(), lengths.tolist(), strict=True):
        if start < free:
            continue
        if gram in seen:
            found += length
            free = start + size
        else:
            seen.add(gram)
    return found
