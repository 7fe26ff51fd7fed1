"""The languages that samples may be in: which headers a document has, where a completed one ends, what is valid.

Another language is an entry in `LANGUAGES`, and its name in `LanguageName` of params.py. Plain text has paragraphs, and
no grammar that a completion could break.
"""

import ast
import hashlib
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from stages.evaluate.generate.params import HeldOutLanguage, LanguageName
from stages.evaluate.rows import End
from stages.formats.documents import Document, containing_file
from stages.formats.evaluation.problems import ProblemFormat

BLANK_LINE = re.compile(r"\r?\n[^\S\n]*\n")

SHORTEST_WITHOUT_SPACES = 20
"""Characters of a paragraph that has a header though it has no white space."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Header:
    """The beginning of a function or a paragraph, and the lines before it in its file."""

    document: str
    """The document's id."""
    source: str
    path: str
    line: int
    """The line of the header, counted from 1."""
    before: str
    """Whole lines before the header, at most `header_bytes` bytes."""
    signature: str
    """The text to complete. It does not end with white space: the tokenizer merges a newline and the indent after
    it into one token, and ending the prompt between them splits that token."""

    @property
    def prompt(self) -> str:
        """The text that the model reads."""
        return self.before + self.signature

    @property
    def key(self) -> str:
        """Identifies the header by the document's content and the line."""
        return f"{self.document}:{self.line}"


Find: TypeAlias = Callable[[Document, int], list[Header]]
"""(document, header_bytes) -> all headers of the document."""


def choose_headers(
    documents: Iterable[Document], language: HeldOutLanguage, count: int, header_bytes: int, seed: int
) -> list[Header]:
    """`count` headers, a pseudo-random choice: the first of each document before the second of any.

    Ranked by a hash with the seed, so that adding a document does not change the ranks of the others.
    """
    ranked: list[tuple[int, str, Header]] = []
    for document in documents:
        find = LANGUAGES[language_of(document.path, language)].headers
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


def function_headers(document: Document, header_bytes: int) -> list[Header]:
    """Every function whose body begins on a line of its own; none if the document does not parse."""
    tree = _tree(document.text)
    if tree is None:
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


def function_end(header: Header) -> End:
    """Ends a completion where a line leaves the function of this header."""
    return partial(_end, indentation(header.signature))


def _end(indent: int, text: str) -> int | None:
    """The index of the first line that is not blank and is indented by at most `indent` columns; None if none is.

    The text before the first newline belongs to the signature's line. Lines within a string or brackets, and comments
    after which the function continues, may have any indentation; comments before the line that ends the function
    belong to what follows.
    """
    start = text.find("\n") + 1
    if start == 0:
        return None
    comments = None
    for line in io.StringIO(text[start:]):
        if line.strip():
            if indentation(line) > indent:
                comments = None
            elif line.lstrip().startswith("#"):
                comments = start if comments is None else comments
            elif not _is_open(text[:start]):
                return start if comments is None else comments
        start += len(line)
    return None


def _is_open(code: str) -> bool:
    """True if code ends within brackets or a string of several lines."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO(code).readline):
            pass
    except tokenize.TokenError as error:
        return "multi-line" in str(error) or "triple-quoted" in str(error)
    except SyntaxError:
        return False
    return False


def indentation(line: str) -> int:
    """Columns before a line's first character, a tab reaching to the next multiple of eight as in Python."""
    expanded = line.expandtabs(8)
    return len(expanded) - len(expanded.lstrip(" "))


def parses_as_python(text: str) -> bool:
    """True if a text parses; an indented one is parsed within a block."""
    return _tree(_in_a_block(text)) is not None


def _in_a_block(text: str) -> str:
    # Not dedented: a string of several lines, or a comment, may begin further to the left than the code around it.
    first = next(filter(str.strip, text.split("\n")), "")
    return f"if True:\n{text}" if indentation(first) else text


def _tree(text: str) -> ast.Module | None:
    """The syntax tree; None if the text is not Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def paragraph_headers(document: Document, header_bytes: int) -> list[Header]:
    """The first half of each paragraph's words. Blank lines separate paragraphs."""
    lines = document.text.split("\n")
    firsts = [index for index, line in enumerate(lines) if line.strip() and (not index or not lines[index - 1].strip())]
    headers = []
    for first in firsts:
        last = next((index for index in range(first, len(lines)) if not lines[index].strip()), len(lines))
        opening = first_half("\n".join(lines[first:last]))
        if opening:
            before = last_whole_lines([f"{line}\n" for line in lines[:first]], header_bytes)
            headers.append(Header(document.id, document.source, document.path, first + 1, before, opening))
    return headers


def first_half(paragraph: str) -> str:
    """The first half of the words with the white space between them; empty if there are fewer than two.

    Of a single long word, as Chinese and Thai have, which write no spaces, the first half of the characters.
    """
    words = paragraph.split()
    if len(words) == 1 and len(words[0]) >= SHORTEST_WITHOUT_SPACES:
        return paragraph[: paragraph.index(words[0]) + len(words[0]) // 2]
    end = 0
    for word in words[: len(words) // 2]:
        end = paragraph.index(word, end) + len(word)
    return paragraph[:end]


def paragraph_end(_: Header) -> End:
    """Ends a completion before a blank line, which may hold white space."""
    return blank_line


def blank_line(text: str) -> int | None:
    """The index of the first blank line, including the newline before it; None without one."""
    found = BLANK_LINE.search(text)
    return found.start() if found else None


def language_of(path: str, language: HeldOutLanguage) -> LanguageName:
    """The language of a held-out document; in a mixed corpus its name decides, of a part of a file the file's."""
    if language != "mixed":
        return language
    return "python" if containing_file(path).endswith((".py", ".pyi")) else "text"


@dataclass(frozen=True, slots=True)
class Language:
    """Everything that the stage needs to know about a language."""

    headers: Find
    header_end: Callable[[Header], End]
    """Where the completion of a header ends."""
    parses: Callable[[str], bool] | None
    """True if a text parses; None for a language without a grammar."""
    stops: Mapping[ProblemFormat, tuple[str, ...]]
    """Strings before which the completion of a problem is cut."""


LANGUAGES: dict[str, Language] = {
    "python": Language(
        headers=function_headers,
        header_end=function_end,
        parses=parses_as_python,
        stops={
            # Chen et al. 2021, section 2.1; `@` begins a decorated definition.
            "humaneval": ("\nclass", "\ndef", "\n#", "\n@", "\nif", "\nprint"),
            # As bigcode-evaluation-harness: the completion itself begins with `def`.
            "mbpp": ("\nclass", "\nassert", '\n"""', "\nprint", "\nif"),
        },
    ),
    "text": Language(
        headers=paragraph_headers,
        header_end=paragraph_end,
        parses=None,
        stops={"humaneval": ("\n\n",), "mbpp": ("\n\n",)},
    ),
}
