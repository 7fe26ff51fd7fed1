"""Where a completed function ends, and whether it is Python."""

import ast
import io
import textwrap
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

from stages.evaluate.samples.headers import Header


@dataclass(frozen=True, slots=True)
class Completion:
    """A function body that the model wrote."""

    header: Header
    body: str
    """What follows the signature, in whole lines; begins with the end of the signature's line."""
    finished: bool
    """The model went on to a line outside the function; otherwise it ended the document or ran out of tokens."""
    parses: bool
    """Signature and body are a function in Python's grammar."""


def complete(header: Header, pieces: Iterable[str]) -> Completion:
    """Take pieces of text until a line leaves the function; no more are drawn than that needs."""
    indent = indentation(header.signature)
    text = ""
    for piece in pieces:
        text += piece
        end = function_end(text, indent)
        if end is not None:
            return _judge(header, text[:end], finished=True)
    return _judge(header, text[: text.rfind("\n") + 1], finished=False)


def function_end(text: str, indent: int) -> int | None:
    """Where the first line begins that is not blank and stands no deeper than `indent` columns; None if none does.

    What precedes the first line's end belongs to the signature's line.
    """
    start = text.find("\n") + 1
    if start == 0:
        return None
    for line in io.StringIO(text[start:]):
        if line.strip() and indentation(line) <= indent:
            return start
        start += len(line)
    return None


def indentation(line: str) -> int:
    """Columns before a line's first character, a tab reaching to the next multiple of eight as in Python."""
    expanded = line.expandtabs(8)
    return len(expanded) - len(expanded.lstrip(" "))


def is_function(text: str) -> bool:
    """Whether a text, its common indentation removed, is Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _judge(header: Header, body: str, *, finished: bool) -> Completion:
    body = body.rstrip() + "\n"
    return Completion(header, body, finished, parses=is_function(header.signature + body))
