"""Function headers of held-out documents, to be completed by the model."""

import ast
import hashlib
import io
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from stages.formats.documents import Document

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Header:
    """A function's signature, and the lines before it in its file."""

    document: str
    """The document's id."""
    source: str
    path: str
    line: int
    """Of the `def`, counted from 1."""
    before: str
    """Whole lines before the header, at most `header_bytes` bytes."""
    signature: str
    """From `def` to the line before its body, without the final newline: the tokenizer merges a newline and the indent
    after it into one token, and ending the prompt between them splits that token."""

    @property
    def prompt(self) -> str:
        """What the model reads."""
        return self.before + self.signature

    @property
    def key(self) -> str:
        """Identifies the header by the document's content and the line."""
        return f"{self.document}:{self.line}"


def choose_headers(documents: Iterable[Document], count: int, header_bytes: int, seed: int) -> list[Header]:
    """`count` headers, a pseudo-random choice: the first of each document before the second of any.

    Ranked by a hash with the seed, so that adding a document does not change the ranks of the others.
    """
    ranked: list[tuple[int, str, Header]] = []
    for document in documents:
        headers = [(_draw(seed, header.key), header) for header in function_headers(document, header_bytes)]
        for rank, (draw, header) in enumerate(sorted(headers, key=lambda pair: pair[0])[:count]):
            ranked.append((rank, draw, header))
    return [header for _, _, header in sorted(ranked, key=lambda entry: entry[:2])[:count]]


def function_headers(document: Document, header_bytes: int) -> list[Header]:
    """Every function whose body begins on a line of its own; none if the document does not parse."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(document.text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    # Lines as `ast` counts them: a form feed does not end a line.
    lines = io.StringIO(document.text, newline="").readlines()
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    return [_header(document, node, lines, header_bytes) for node in functions if _body_stands_apart(node, lines)]


def _body_stands_apart(node: Function, lines: list[str]) -> bool:
    body = node.body[0]
    return lines[body.lineno - 1].encode("utf-8")[: body.col_offset].strip() == b""


def _header(document: Document, node: Function, lines: list[str], header_bytes: int) -> Header:
    first = node.lineno - 1
    return Header(
        document=document.id,
        source=document.source,
        path=document.path,
        line=node.lineno,
        before=last_whole_lines(lines[:first], header_bytes),
        signature="".join(lines[first : _first_line(node.body[0]) - 1]).rstrip(),
    )


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def last_whole_lines(lines: list[str], most_bytes: int) -> str:
    """As many of the last lines as fit."""
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
