"""The language that a document is written in, as py3langid identifies it: offline, its model is in the package."""

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Self

from pydantic import Field

from stages.clean.filtering import DocumentText, Drop, Feature, Features, Filter, Measure, Share, below
from stages.runtime.section import Section

EXCERPT = 1000
"""Characters that are read of the start, the middle and the end of a document: more of it would cost a second per 8 MB
and change almost no answer."""

DIGITS = 4
"""Of the confidence after the point: its last bits differ between processors."""


class NaturalLanguageSettings(Section):
    """Which languages are kept. With both values null the columns are there and nothing is dropped."""

    languages: Annotated[list[Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]], Field(min_length=1)] | None
    """Keep the documents in these languages (ISO 639, such as `en`); null keeps all."""
    confidence_minimum: Share | None
    """Drop a document whose language is less certain: very short texts, tables, mixtures."""


class NaturalLanguage(Filter):
    """Columns `natural_language` (empty where a document has no letters) and `natural_language_confidence`.

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
    """What is read of a text: all of it where it is short."""
    if len(text) <= 3 * EXCERPT:
        return text
    middle = (len(text) - EXCERPT) // 2
    return "\n".join((text[:EXCERPT], text[middle : middle + EXCERPT], text[-EXCERPT:]))


@cache
def identifier() -> Any:
    """The model, unpacked once in a process (about a second)."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
