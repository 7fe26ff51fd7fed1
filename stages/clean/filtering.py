"""What a filter is: its parameters, the features that it measures, and which documents it drops.

A filter is a subclass of `Filter` in a module of `stages/clean/filters/`, or of the project's own folder `filters/`.
Nothing else names it: its fields are part of `clean.filters` in params.yaml, its features are columns of the ledger,
its verdicts are in every report.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

from pydantic import Field

from stages.runtime.section import Section

if TYPE_CHECKING:  # slow to import, and the parameters are checked without it
    import pandas as pd

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]

Feature: TypeAlias = int | float | bool | str
Drop: TypeAlias = "tuple[str, pd.Series | list[bool]]"
"""A verdict, and for each document whether it is dropped with it."""


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
    def lowered(self) -> str:
        """In lower case."""
        return self.text.lower()


Measure: TypeAlias = Callable[[DocumentText], dict[str, Feature]]
"""Column of the ledger -> its value for one document."""


class Filter(Section):
    """One filter, or several that share features. A filter is off where its parameter is null (or false)."""

    @staticmethod
    def measure(text: DocumentText) -> dict[str, Feature]:
        """Column of the ledger -> its value for one document. It depends on the text alone."""
        raise NotImplementedError

    @classmethod
    def measurement(cls, parameters: Self) -> Measure | None:
        """How documents are measured under these parameters: by default `measure`, whatever they are.

        None where nothing is measured, and the ledger has no such columns. What depends on more than the text is a
        `partial` of a module's function, with texts that name all of it, such as the sha256 of a file that is read.
        """
        return cls.measure

    @abstractmethod
    def drops(self, features: "pd.DataFrame", seed: int) -> Iterator[Drop]:
        """What each filter that is on drops by the features of all documents, each judged on its own."""


def above(features: "pd.DataFrame", column: str, threshold: float | None) -> Iterator[Drop]:
    """Drop the documents with more than the threshold; nothing where it is null."""
    if threshold is not None:
        yield f"{column}_above", features[column] > threshold


def below(features: "pd.DataFrame", column: str, threshold: float | None) -> Iterator[Drop]:
    """Drop the documents with less than the threshold; nothing where it is null."""
    if threshold is not None:
        yield f"{column}_below", features[column] < threshold


def drawn(names: Iterable[str], candidates: Iterable[bool], probability: float, seed: int, purpose: str) -> list[bool]:
    """Whether each name is a candidate and drawn with a probability."""
    pairs = zip(names, candidates, strict=True)
    return [bool(candidate) and draw(seed, purpose, name) < probability for name, candidate in pairs]


def draw(seed: int, purpose: str, name: str) -> float:
    """A number from [0, 1) that depends on its arguments alone, not on earlier draws."""
    digest = hashlib.sha256(f"{seed}\t{purpose}\t{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
