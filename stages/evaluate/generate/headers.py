"""Headers of held-out documents for the model to complete: the beginnings of functions or paragraphs."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from stages.formats.documents import Document


@dataclass(frozen=True, slots=True)
class Header:
    """The beginning of a function or a paragraph, and the lines before it in its file."""

    document: str
    """The document's id."""
    source: str
    path: str
    line: int
    """Of the header, counted from 1."""
    before: str
    """Whole lines before the header, at most `header_bytes` bytes."""
    signature: str
    """What is to be completed. It does not end with white space: the tokenizer merges a newline and the indent after
    it into one token, and ending the prompt between them splits that token."""

    @property
    def prompt(self) -> str:
        """What the model reads."""
        return self.before + self.signature

    @property
    def key(self) -> str:
        """Identifies the header by the document's content and the line."""
        return f"{self.document}:{self.line}"


Find: TypeAlias = Callable[[Document, int], list[Header]]
"""(document, header_bytes) -> all headers of the document."""


def choose_headers(documents: Iterable[Document], find: Find, count: int, header_bytes: int, seed: int) -> list[Header]:
    """`count` headers, a pseudo-random choice: the first of each document before the second of any.

    Ranked by a hash with the seed, so that adding a document does not change the ranks of the others.
    """
    ranked: list[tuple[int, str, Header]] = []
    for document in documents:
        headers = [(_draw(seed, header.key), header) for header in find(document, header_bytes)]
        for rank, (draw, header) in enumerate(sorted(headers, key=lambda pair: pair[0])[:count]):
            ranked.append((rank, draw, header))
    return [header for _, _, header in sorted(ranked, key=lambda entry: entry[:2])[:count]]


def last_whole_lines(lines: list[str], most_bytes: int) -> str:
    """The last lines, as many as fit into `most_bytes`."""
    kept: list[str] = []
    size = 0
    for line in reversed(lines):
        size += len(line.encode("utf-8"))
        if size > most_bytes:
            break
        kept.append(line)
    return "".join(reversed(kept))


def _draw(seed: int, key: str) -> str:
    return hashlib.sha256(f"{seed}:{key}".encode()).hexdigest()
