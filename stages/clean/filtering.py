"""What a filter is: its parameters, the features that it measures, and which documents it drops.

A filter is a subclass of `Filter` in a module of `stages/clean/filters/`. Nothing else names it: its fields are part of
`clean.filters` in params.yaml, its features are columns of the ledger, its verdicts are in every report.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

from pydantic import Field

from stages.runtime.section import Section

if TYPE_CHECKING:  # slow to import, and the parameters are checked without it
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    Lengths: TypeAlias = npt.NDArray[np.int64]

Share = Annotated[float, Field(ge=0, le=1)]
PositiveNumber = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]

Feature: TypeAlias = int | float | bool | str
Features: TypeAlias = "pd.DataFrame"
"""A row for each document."""
Drop: TypeAlias = "tuple[str, pd.Series | list[bool]]"
"""A verdict, and for each document whether it is dropped with it."""

ASCII = bytes(range(128))

RARE_LINE_ENDS = "\v\f\r\x1c\x1d\x1e"
"""Characters in ASCII, besides the newline, that end a line for `str.splitlines`."""


class DocumentText:
    """One document as the filters read it. What several of them need is computed once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.data = text.encode("utf-8")

    @cached_property
    def lines(self) -> list[str]:
        """Without their ends."""
        return self.text.splitlines()

    @cached_property
    def line_lengths(self) -> "Lengths":
        """Characters of each of the lines, without its end."""
        import numpy as np

        if not self.is_ascii or any(end in self.text for end in RARE_LINE_ENDS):
            return np.array(list(map(len, self.lines)), dtype=np.int64)
        newlines = np.flatnonzero(np.frombuffer(self.data, dtype=np.uint8) == ord("\n"))
        bounds = np.concatenate([[-1], newlines, [len(self.data)]])
        lengths: Lengths = bounds[1:] - bounds[:-1] - 1
        # The text after the last newline is a line unless it is empty.
        return lengths if lengths[-1] else lengths[:-1]

    @cached_property
    def is_ascii(self) -> bool:
        """Whether each character is one byte."""
        return len(self.data) == len(self.text)

    @cached_property
    def beyond_ascii(self) -> str:
        """The characters that are not ASCII, in their order."""
        return self.data.translate(None, ASCII).decode("utf-8")

    @cached_property
    def lowered(self) -> str:
        """In lower case."""
        return self.data.lower().decode("ascii") if self.is_ascii else self.text.lower()

    def first_lines(self, count: int) -> list[str]:
        """At most `count` lines, without reading on."""
        return "\n".join(self.text.split("\n", count)[:count]).splitlines()[:count]


Measure: TypeAlias = Callable[[DocumentText], dict[str, Feature]]
"""Column of the ledger -> its value for one document."""


class Filter(Section):
    """One filter, or several that share features. A filter is off if its parameter is null (or false)."""

    @staticmethod
    def measure(text: DocumentText) -> dict[str, Feature]:
        """Column of the ledger -> its value for one document, which depends on the text alone. By default no column:
        a filter may read those of others."""
        return {}

    @classmethod
    def measurement(cls, parameters: Self) -> Measure | None:
        """How documents are measured under these parameters: by default by `measure`, if the filter has one.

        None if nothing is measured, and the ledger has no such columns. What depends on more than the text is a
        `partial` of a module's function, with texts that name all of it, such as the sha256 of a file that is read.
        """
        return None if cls.measure is Filter.measure else cls.measure

    @abstractmethod
    def drops(self, features: Features, seed: int) -> Iterator[Drop]:
        """What each filter that is on drops by the features of all documents, each judged on its own."""


def above(features: Features, column: str, threshold: float | None) -> Iterator[Drop]:
    """Drop the documents with more than the threshold; nothing if it is null."""
    if threshold is not None:
        yield f"{column}_above", features[column] > threshold


def below(features: Features, column: str, threshold: float | None) -> Iterator[Drop]:
    """Drop the documents with less than the threshold; nothing if it is null."""
    if threshold is not None:
        yield f"{column}_below", features[column] < threshold


def draw_candidates(
    names: Iterable[str], candidates: Iterable[bool], probability: float, seed: int, purpose: str
) -> list[bool]:
    """Whether each name is a candidate and drawn with a probability."""
    pairs = zip(names, candidates, strict=True)
    return [bool(candidate) and draw_uniform(seed, purpose, name) < probability for name, candidate in pairs]


def draw_uniform(seed: int, purpose: str, name: str) -> float:
    """A number from [0, 1) that depends on its arguments alone, not on earlier draws."""
    digest = hashlib.sha256(f"{seed}\t{purpose}\t{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
