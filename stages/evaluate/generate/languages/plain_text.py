"""Plain text: the paragraphs of a document. There is no grammar that a completion could break."""

from stages.evaluate.generate.languages.headers import Header, last_whole_lines
from stages.evaluate.stopping import End, stop_at
from stages.formats.documents import Document


def paragraph_headers(document: Document, header_bytes: int) -> list[Header]:
    """The first half of each paragraph's words. Blank lines separate paragraphs; one of a single word has no header."""
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
    """The first half of the words with the white space between them; empty where there are fewer than two."""
    words = paragraph.split()
    end = 0
    for word in words[: len(words) // 2]:
        end = paragraph.index(word, end) + len(word)
    return paragraph[:end]


def paragraph_end(_: Header) -> End:
    """Ends a completion before a blank line."""
    return stop_at(["\n\n"])
