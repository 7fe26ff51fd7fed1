"""Pages for people: HTML and Markdown, from templates in the folder of the code that fills them.

What comes from corpora, problem sets and models is shown as it is and never becomes markup: `NAME.html.jinja` and
`NAME.md.jinja` escape every value. A page of HTML has no script and needs no other file, so it opens from its folder,
and in the views of DVC and Prefect.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_MARKUP = re.compile(r"[\\`*\[\]<>|~&!$#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=[A-Za-z]):(?=//)|@")
"""Characters that could begin a link, an image, HTML, emphasis, code, a formula, a mention or another cell. An
underscore within a word is only an underscore."""


def in_digits(value: float, sign: str = "") -> str:
    """At least four significant digits, thousands with commas; with `sign` "+" also the sign of a positive number."""
    return f"{value:{sign},.4g}" if abs(value) < 9999.5 else f"{value:{sign},.0f}"


class Markdown(str):
    """A text that is Markdown already: a template puts it out as it is."""

    __slots__ = ()


def filled_template(template: Path, filters: dict[str, Callable[..., object]], **values: Any) -> str:
    """The page. `filters` are the formats that the template uses; a value that it uses and lacks is an error.

    A Markdown template also has the filter `markdown`, for what is Markdown already, and the functions `table` and
    `code_block`.
    """
    of_markdown = template.name.endswith(".md.jinja")
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=not of_markdown,
        finalize=_in_markdown if of_markdown else None,
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    if of_markdown:
        environment.filters["markdown"] = Markdown
        environment.globals |= {"table": markdown_table, "code_block": code_block}
    environment.filters |= filters
    return environment.get_template(template.name).render(values)


def _in_markdown(value: object) -> str:
    return value if isinstance(value, Markdown) else escape(str(value))


def escape(text: str) -> str:
    """The text on one line, with a backslash before each character that could be markup (CommonMark 2.4)."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Markdown:
    """A table whose first `left` columns are aligned left and the others right; cells are escaped, except Markdown."""
    alignment = ["---"] * left + ["--:"] * (len(heading) - left)
    lines = [map(_in_markdown, heading), alignment, *(map(_in_markdown, row) for row in rows)]
    return Markdown("".join(f"| {' | '.join(line)} |\n" for line in lines))


def code_block(text: str, language: str = "python") -> Markdown:
    """A code block with a fence longer than any run of backticks in the text, which therefore cannot end it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}{language}\n{text.rstrip()}\n{fence}\n")
