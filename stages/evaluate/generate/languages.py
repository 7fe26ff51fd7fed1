"""The languages of samples: which headers a document has, where a completion ends, and whether it is valid.

To add a language, add an entry to `LANGUAGES` and its name to `LanguageName` in params.py.
"""

import ast
import hashlib
import io
import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain, groupby, islice, zip_longest
from pathlib import Path
from typing import TypeAlias

from stages.evaluate.generate.params import HeldOutLanguage, LanguageName
from stages.evaluate.generate.rows import End
from stages.formats.documents import Document, containing_file, documents_of, id_bits, read_shard, shard_paths
from stages.formats.evaluation.problems import ProblemFormat

MIN_UNSPACED_CHARACTERS = 20
"""A paragraph without white space has a header if it has at least this many characters."""

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
    """The text to complete, without white space at its end: the tokenizer merges a newline and the indent after it into
    one token, which a prompt that ends between them would split."""

    @property
    def prompt(self) -> str:
        """The text that the model reads."""
        return self.before + self.signature

    @property
    def key(self) -> str:
        """Identifies the header by the document's content and the line."""
        return f"{self.document}:{self.line}"


Signatures: TypeAlias = dict[int, str]
"""Index of a line -> the text to complete that begins there."""


def choose_headers(
    documents: Iterable[Document], language: HeldOutLanguage, count: int, header_bytes: int, seed: int
) -> list[Header]:
    """Choose `count` headers: one from each document before a second one from any, in a pseudo-random order.

    Documents are read until `count` of them have headers.
    """
    ranked: list[list[Header]] = []
    for document in islice(documents, None if count else 0):
        lines, signatures = LANGUAGES[language_of(document.path, language)].signatures(document.text)
        drawn = nsmallest(count, signatures, key=lambda first: _draw(seed, f"{document.id}:{first + 1}"))
        if drawn:
            ranked.append([])
        for first in drawn:
            before = last_whole_lines(lines, first, header_bytes)
            origin = document.id, document.source, document.path, first + 1
            ranked[-1].append(Header(*origin, before, signatures[first]))
        if len(ranked) == count:
            break
    chosen = chain.from_iterable(zip_longest(*ranked))
    return [header for header in chosen if header is not None][:count]


def drawn_documents(folder: Path, seed: int) -> Iterator[Document]:
    """Yield the documents of a folder in the order of their ids, from an id that depends on the seed, wrapping around.

    Ids are hashes of the texts, so the first ones are a random choice that other documents hardly change, and only
    their shards are read.
    """
    shards = shard_paths(folder)
    start = _draw(seed, "")
    bits = [shard.stem[1:] for shard in shards]
    first = max(bisect_right(bits, id_bits(start, max(map(len, bits), default=0))) - 1, 0)
    begun = list(documents_of(read_shard(shards[first])))
    yield from (document for document in begun if document.id >= start)
    for shard in shards[first + 1 :] + shards[:first]:
        yield from documents_of(read_shard(shard))
    yield from (document for document in begun if document.id < start)


def _draw(seed: int, key: str) -> str:
    return hashlib.sha256(f"{seed}:{key}".encode()).hexdigest()


def last_whole_lines(lines: list[str], stop: int, most_bytes: int) -> str:
    """The last lines before index `stop` that fit into `most_bytes`."""
    first, size = stop, 0
    while first and (size := size + len(lines[first - 1].encode("utf-8"))) <= most_bytes:
        first -= 1
    return "".join(lines[first:stop])


def function_signatures(text: str) -> tuple[list[str], Signatures]:
    """The lines of a text, and its functions whose body begins on a new line; none if the text does not parse."""
    tree = _tree(text)
    # Split lines as `ast` does: a form feed does not end a line.
    lines = io.StringIO(text, newline="").readlines()
    signatures: Signatures = {}
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, Function):
            body, decorators = node.body[0], getattr(node.body[0], "decorator_list", [])
            if not lines[body.lineno - 1].encode("utf-8")[: body.col_offset].strip():
                stop = min(node.lineno for node in (body, *decorators))
                signatures[node.lineno - 1] = "".join(lines[node.lineno - 1 : stop - 1]).rstrip()
    return lines, signatures


_MARK = re.compile(r"""#|\"{3}|'{3}|["']|[([{]|[)\]}]|\\\n""")
"""Tokens outside of strings that change how the following code is read."""

_IN_STRING = {
    quote: re.compile(rf"\\.|{quote}" if len(quote) == 3 else rf"\\.|{quote}|\n", re.DOTALL)
    for quote in ('"""', "'''", '"', "'")
}

_FIRST_CHARACTER = re.compile(r"\S|\n")


@dataclass(slots=True)
class FunctionEnd:
    """Ends a completion before its first nonblank line that is indented by at most `indent` columns.

    The text before the first newline belongs to the signature's line. Lines within a string or brackets, and comments
    after which the function continues, may have any indentation. Comments just before the line that ends the function
    are cut too. It is called with a growing text, and reads each line once.
    """

    indent: int
    start: int = 0
    """The start of the first line that is not complete."""
    searched: int = 0
    """That line has no newline before this index."""
    comments: int | None = None
    """The start of the comments just before that line."""
    quote: str = ""
    """The delimiter of the open string, if any."""
    depth: int = 0
    """Open brackets."""
    continued: bool = False
    """True if the last line ends with a backslash."""

    def __call__(self, text: str) -> int | None:
        """The index of the line that ends the function, or of the comments before it; None while it has not ended."""
        while self.start < len(text):
            stop = text.find("\n", max(self.searched, self.start)) + 1
            self.searched = len(text)
            if self.start and self._leaves(text):
                return self.start if self.comments is None else self.comments
            if not stop:
                return None
            self._read(text[self.start : stop])
            self.start = self.searched = stop
        return None

    def _leaves(self, text: str) -> bool:
        """True if the line at `start` is no longer part of the function."""
        first = _FIRST_CHARACTER.search(text, self.start)
        if first is None or first[0] == "\n":
            return False
        if indentation(text[self.start : first.end()]) > self.indent:
            self.comments = None
        elif first[0] == "#":
            self.comments = self.start if self.comments is None else self.comments
        else:
            return not (self.quote or self.depth or self.continued)
        return False

    def _read(self, line: str) -> None:
        position, self.continued = 0, False
        while match := (_IN_STRING[self.quote] if self.quote else _MARK).search(line, position):
            mark, position = match[0], match.end()
            if self.quote:
                self.quote = "" if mark in (self.quote, "\n") else self.quote
            elif mark == "#":
                return
            elif mark in _IN_STRING:
                self.quote = mark
            elif mark == "\\\n":
                self.continued = True
            else:
                self.depth = max(0, self.depth + (1 if mark in "([{" else -1))


def indentation(line: str) -> int:
    """Columns before a line's first character; as in Python, a tab ends at a multiple of eight."""
    expanded = line.expandtabs(8)
    return len(expanded) - len(expanded.lstrip(" "))


def parses_as_python(text: str) -> bool:
    """True if a text parses; indented text is parsed as a block."""
    # Not dedented, because comments and lines of strings may be indented less than the code around them.
    first = next(filter(str.strip, text.split("\n")), "")
    return _tree(f"if True:\n{text}" if indentation(first) else text) is not None


def _tree(text: str) -> ast.Module | None:
    """The syntax tree; None if the text is not Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def paragraph_signatures(text: str) -> tuple[list[str], Signatures]:
    """The lines of a text, and the first half of each paragraph. Blank lines separate paragraphs."""
    lines = [f"{line}\n" for line in text.split("\n")]
    signatures = {}
    for is_blank, group in groupby(enumerate(lines), lambda numbered: not numbered[1].strip()):
        if not is_blank:
            (first, opening), *more = group
            if half := first_half("".join([opening, *(line for _, line in more)]).removesuffix("\n")):
                signatures[first] = half
    return lines, signatures


def first_half(paragraph: str) -> str:
    """The first half of the words with the white space between them; empty if there are fewer than two.

    A single long word, as in Chinese or Thai text, gives the first half of its characters.
    """
    words = paragraph.split()
    if len(words) == 1 and len(words[0]) >= MIN_UNSPACED_CHARACTERS:
        return paragraph[: paragraph.index(words[0]) + len(words[0]) // 2]
    end = 0
    for word in words[: len(words) // 2]:
        end = paragraph.index(word, end) + len(word)
    return paragraph[:end]


def blank_line(text: str) -> int | None:
    """Ends a completion before the newline that precedes its first blank line, which may contain white space."""
    match = re.search(r"\r?\n[^\S\n]*\n", text)
    return match.start() if match else None


def language_of(path: str, language: HeldOutLanguage) -> LanguageName:
    """The language of a held-out document; in a mixed corpus the name of its file decides."""
    if language != "mixed":
        return language
    return "python" if containing_file(path).endswith((".py", ".pyi")) else "text"


@dataclass(frozen=True, slots=True)
class Language:
    """What differs between languages."""

    signatures: Callable[[str], tuple[list[str], Signatures]]
    """Returns the lines of a text, and the beginnings in it to complete."""
    header_end: Callable[[Header], End]
    """Returns the condition that ends the completion of a header."""
    parses: Callable[[str], bool] | None
    """Returns True if a text parses; None for a language without a grammar."""
    stops: Mapping[ProblemFormat, tuple[str, ...]]
    """Strings before which completions of problems are cut."""


LANGUAGES: dict[str, Language] = {
    "python": Language(
        signatures=function_signatures,
        header_end=lambda header: FunctionEnd(indentation(header.signature)),
        parses=parses_as_python,
        stops={
            # Chen et al. 2021, section 2.1; `@` begins a decorated definition.
            "humaneval": ("\nclass", "\ndef", "\n#", "\n@", "\nif", "\nprint"),
            # As in bigcode-evaluation-harness: here the completion itself begins with `def`.
            "mbpp": ("\nclass", "\nassert", '\n"""', "\nprint", "\nif"),
        },
    ),
    "text": Language(
        signatures=paragraph_signatures,
        header_end=lambda _: blank_line,
        parses=None,
        stops={"humaneval": ("\n\n",), "mbpp": ("\n\n",)},
    ),
}
