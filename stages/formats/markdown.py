"""Markdown for people: what comes from a corpus is shown as it is and never becomes markup."""

import re
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(r"[\\`*\[\]<>|~&!$#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=[A-Za-z]):(?=//)|@")
"""Characters that could begin a link, an image, HTML, emphasis, code, a formula, a mention or another cell. An
underscore within a word is only an underscore."""


def escape(text: str) -> str:
    """The text on one line, with a backslash before each character that could be markup (CommonMark 2.4)."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is aligned left and the others right; all cells are escaped."""
    alignment = ["---", *["--:"] * (len(heading) - 1)]
    lines = [map(escape, heading), alignment, *(map(escape, row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code_block(text: str, language: str = "python") -> str:
    """A code block with a fence longer than any run of backticks in the text, which therefore cannot end it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"
