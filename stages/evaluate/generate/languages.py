"""The languages that samples may be in. Another one is an entry in `LANGUAGES`, and its name in `LanguageName` of
params.py.

Plain text is here: it has paragraphs, and no grammar that a completion could break.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stages.evaluate.generate import python
from stages.evaluate.generate.headers import Find, Header, last_whole_lines
from stages.evaluate.generate.params import LanguageName
from stages.evaluate.sampling import End
from stages.formats.documents import Document
from stages.formats.evaluation.problems import Kind

BLANK_LINE = re.compile(r"\r?\n[^\S\n]*\n")

SHORTEST_WITHOUT_SPACES = 8
"""Characters of a paragraph that has a header though it has no white space."""


@dataclass(frozen=True, slots=True)
class Language:
    """What the stage needs to know about a language."""

    headers: Find
    header_end: Callable[[Header], End]
    """Where the completion of a header ends."""
    parses: Callable[[str], bool] | None
    """Whether a text parses; None for a language without a grammar."""
    compiles: Callable[[str], bool] | None
    """Whether a text compiles, without running it; None for a language without a compiler here."""
    stops: Mapping[Kind, tuple[str, ...]]
    """Strings before which the completion of a problem is cut."""


def paragraph_headers(document: Document, header_bytes: int) -> list[Header]:
    """The first half of each paragraph's words. Blank lines separate paragraphs; one of a single word has no header,
    unless it is in a script that writes no spaces."""
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
    """The first half of the words with the white space between them; empty where there are fewer than two.

    Of a text that writes no spaces, as Chinese and Thai, the first half of the characters.
    """
    words = paragraph.split()
    if len(words) == 1 and _writes_no_spaces(words[0]):
        half = paragraph.index(words[0]) + len(words[0]) // 2
        while half < len(paragraph) and _belongs_to_the_one_before(paragraph, half):
            half += 1
        return paragraph[:half]
    end = 0
    for word in words[: len(words) // 2]:
        end = paragraph.index(word, end) + len(word)
    return paragraph[:end]


def _writes_no_spaces(text: str) -> bool:
    """Whether most of a longer text are letters without case, as those of the scripts without spaces are."""
    letters = sum(unicodedata.category(character) == "Lo" for character in text)
    return len(text) >= SHORTEST_WITHOUT_SPACES and 2 * letters > len(text)


def _belongs_to_the_one_before(text: str, index: int) -> bool:
    """Whether a character is a mark on the one before it, or joined to it."""
    return unicodedata.category(text[index]).startswith(("M", "Cf")) or unicodedata.category(text[index - 1]) == "Cf"


def paragraph_end(_: Header) -> End:
    """Ends a completion before a blank line, which may hold white space."""
    return blank_line


def blank_line(text: str) -> int | None:
    """Where the first blank line begins, with the end of the line before it; None without one."""
    found = BLANK_LINE.search(text)
    return found.start() if found else None


LANGUAGES: dict[LanguageName, Language] = {
    "python": Language(
        headers=python.function_headers,
        header_end=python.function_end,
        parses=python.parses,
        compiles=python.compiles,
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
        compiles=None,
        stops={"humaneval": ("\n\n",), "mbpp": ("\n\n",)},
    ),
}
