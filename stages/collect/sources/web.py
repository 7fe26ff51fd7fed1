"""Web pages, one document each: HTML files and WARC files, as crawlers write them.

Their text is extracted by resiliparse, WARC files are read by its fastwarc (the group `web`). Against trafilatura, on
80 pages of documentation (2.4 MB): 42 MB per CPU second against 3.2; 97 % of the words of the main part against 95 %;
78 % of the extracted words are of the main part against 98 %. It has two libraries of its own to install, trafilatura
about ten.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, BinaryIO, ClassVar, Literal, cast

from stages.collect.located import LocatedFile, decompressed
from stages.collect.source_kinds import TOO_LARGE, FileSource, SourceItem
from stages.runtime.credentials import without_credentials
from stages.runtime.entry import UserError

LIBRARIES = ("resiliparse", "fastwarc")
"""What the text depends on: requirements.lock must pin them where they are used."""

HTML_TYPES = ("text/html", "application/xhtml+xml")
"""The media types of web pages (RFC 2854, RFC 3236)."""

RECORD_END = b"\r\n\r\n"
"""What follows each record (ISO 28500, WARC 1.1, 4)."""

VERSION = re.compile(rb"WARC/(?:1\.[01]|0\.\d{1,2})[ \t]*\r?\n")
"""The line that begins a record, of the versions that fastwarc reads."""

VERSION_CUT_OFF = re.compile(rb"W(?:A(?:R(?:C(?:/(?:1(?:\.[01]?)?)?)?)?)?)?\r?\Z")

HEADER_ENDS = re.compile(rb"\n(?:\r?\n|(?=WARC/))")
"""An empty line; a header with the beginning of another one has lost its end."""

CONTENT_LENGTH = re.compile(rb"\nContent-Length:[ \t]*(\d{1,18})[ \t]*\r?\n")

LARGEST_HEADER_BYTES, BLOCK_BYTES = 2**15, 2**16

DAMAGED = "damaged part of a WARC file"

CUT_OFF = "cut off: the end of its last record is missing"


class Html(FileSource):
    """HTML files, of which the visible text is a document."""

    kind: Literal["html"]
    main_content: bool
    """Whether navigation, headers and footers are left out, as far as rules of thumb find them."""

    @property
    def libraries(self) -> list[str]:
        """What extracts the text."""
        return required_libraries(self.kind)

    def items_of(self, file: LocatedFile, limit: int) -> Iterator[SourceItem]:
        """The page. Raises UserError that names a file that cannot be read."""
        with decompressed(file) as stream:
            html = stream.read(limit + 1)
        if len(html) > limit:
            yield self.left_out(file.name, TOO_LARGE)
        else:
            yield self.item(file.name, page_text(html, None, self.main_content))


class Warc(FileSource):
    """WARC files (ISO 28500) of crawls: their HTML pages, and the plain texts of WET files."""

    notable: ClassVar[tuple[str, ...]] = (DAMAGED,)

    kind: Literal["warc"]
    main_content: bool
    """As of HTML files. The texts of WET files are taken as they are."""

    @property
    def libraries(self) -> list[str]:
        """What reads the files and extracts the text."""
        return required_libraries(self.kind)

    def items_of(self, file: LocatedFile, limit: int) -> Iterator[SourceItem]:
        """Each page, by its address, and each damaged part, by the number of its first byte. Raises UserError that
        names a file that is cut off, or whose compression is damaged."""
        from fastwarc.warc import ArchiveIterator, WarcRecordType

        wanted = WarcRecordType.response | WarcRecordType.conversion
        with decompressed(file) as stream:
            records = _Records(stream, limit)
            for record in ArchiveIterator(cast("BinaryIO", records), record_types=wanted, stream_detect=False):
                address = without_credentials((record.headers.get("WARC-Target-URI") or "").strip("<>"))
                is_html = record.record_type == WarcRecordType.response
                content, reason = _read(record, is_html, limit)
                if reason:
                    yield self.left_out(address, reason)
                elif is_html:
                    yield self.item(address, page_text(content, record.http_charset, self.main_content))
                else:
                    yield self.item(address, content)
            for first in records.damaged:
                yield self.left_out(f"{file.name}#{first}", DAMAGED)


def required_libraries(kind: str) -> list[str]:
    """The libraries of the group `web`. Raises UserError that says how to install them where they are not."""
    if missing := [name for name in LIBRARIES if find_spec(name) is None]:
        raise UserError(
            f"collect.sources: kind `{kind}` needs {' and '.join(missing)}: `pip install -e '.[web]'`, then write the "
            "versions of resiliparse and fastwarc that `pip list` shows into requirements.lock, as NAME==VERSION"
        )
    return list(LIBRARIES)


def page_text(html: bytes, encoding: str | None, main_content: bool) -> str:
    """The visible text of a page, a line for a block. The encoding is that of the server, else the one that the page
    names, else what its bytes look like (as in HTML5)."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import detect_encoding
    from resiliparse.parse.html import HTMLTree

    found = encoding or detect_encoding(html, html5_compatible=True) or "utf-8"
    tree = HTMLTree.parse_from_bytes(html, found)
    text: str = extract_plain_text(tree, main_content=main_content, preserve_formatting=True)
    return text


def _read(record: Any, is_page: bool, limit: int) -> tuple[bytes, str]:
    """The content of a record, of a page without the encodings of HTTP, and why it is left out: one of them empty."""
    if is_page and (record.http_headers is None or record.http_headers.status_code != 200):
        return b"", "page with another status than 200"
    if is_page and record.http_content_type not in HTML_TYPES:
        return b"", "no HTML page"
    content = record.reader.read(limit + 1)
    # Not by fastwarc: there one page that is not encoded as its server said ends the file.
    try:
        for name in _encodings(record.http_headers) if is_page else ():
            content = DECODERS[name](content, limit + 1)
    except (KeyError, ValueError, zlib.error):
        return b"", "page whose content is not encoded as its server said"
    return (b"", TOO_LARGE) if len(content) > limit else (content, "")


def _encodings(headers: Any) -> list[str]:
    """How a page was encoded, the last step first (RFC 9110, 8.4; RFC 9112, 6.1)."""
    listed = f"{headers.get('Content-Encoding') or ''},{headers.get('Transfer-Encoding') or ''}"
    return [name for part in reversed(listed.lower().split(",")) if (name := part.strip()) not in ("", "identity")]


def _chunked(content: bytes, limit: int) -> bytes:
    """The content of chunks: each its size in hex, a line end, as many bytes, a line end (RFC 9112, 7.1)."""
    parts, rest = [], content
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if (length := int(size.partition(b";")[0], 16)) == 0:
            break
        parts.append(rest[:length])
        rest = rest[length + 2 :]
    return b"".join(parts)[:limit]


def _inflated(content: bytes, limit: int) -> bytes:
    return zlib.decompressobj(32 + zlib.MAX_WBITS).decompress(content, limit)


DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "chunked": _chunked,
    "gzip": _inflated,
    "x-gzip": _inflated,
    "deflate": _inflated,
}
"""The most bytes that each gives."""


class _Records:
    """The records of a WARC file as a stream, without what is between them that is none, and without damaged ones.

    fastwarc refuses a file with anything between its records, and takes one that is cut off for a shorter one. A record
    is damaged where it does not end after as many bytes as it says; that is not looked at above `limit` bytes.
    """

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._ahead = bytearray()
        """What was read and not given."""
        self._first = 0
        """Of these bytes, the number in the file."""
        self._whole = 0
        """Of these bytes, and of those after them, how many are of records."""
        self._records = 0
        self.damaged: list[int] = []
        """The first byte of each part that was left out."""

    def read(self, size: int = -1) -> bytes:
        """Some bytes of the records, at most `size`; none at the end."""
        if not self._whole:
            self._find_record()
        if self._whole and not self._ahead and not self._more():
            raise OSError(CUT_OFF)
        return self._taken(min(self._whole, len(self._ahead), size if size >= 0 else BLOCK_BYTES))

    def tell(self) -> int:
        """The number of the next byte."""
        return self._first

    def _find_record(self) -> None:
        """Come to the next record, or to the end."""
        damaged = None
        while self._skip_empty_lines():
            self._whole = self._length()
            if self._whole:
                self._records += 1
                break
            damaged = self._first if damaged is None else damaged
            self._skip_to_version()
        if damaged is not None:
            self.damaged.append(damaged)
        if damaged is not None and not self._records:
            raise OSError("Invalid WARC header: the file has no record")

    def _length(self) -> int:
        """Bytes of the record that begins here, with its end; 0 where none does, or a damaged one."""
        self._fill(LARGEST_HEADER_BYTES)
        if VERSION_CUT_OFF.match(self._ahead):
            raise OSError(CUT_OFF)
        if not VERSION.match(self._ahead):
            return 0
        if (end := HEADER_ENDS.search(self._ahead, 0, LARGEST_HEADER_BYTES)) is None:
            if len(self._ahead) < LARGEST_HEADER_BYTES:
                raise OSError(CUT_OFF)
            return 0
        content = CONTENT_LENGTH.search(self._ahead, 0, end.end())
        if content is None or end[0] == b"\n":
            return 0
        length = end.end() + int(content[1])
        if int(content[1]) > self._limit + LARGEST_HEADER_BYTES:
            return length + len(RECORD_END)
        self._fill(length + len(RECORD_END))
        if len(self._ahead) < length + len(RECORD_END):
            raise OSError(CUT_OFF)
        after = self._ahead[length : length + len(RECORD_END)]
        if after == RECORD_END:
            return length + len(RECORD_END)
        return length if after.startswith((b"\r\n", b"\n", b"WARC")) else 0

    def _skip_empty_lines(self) -> bool:
        """Whether anything else follows."""
        while self._ahead or self._more():
            self._taken(len(self._ahead) - len(self._ahead.lstrip()))
            if self._ahead:
                return True
        return False

    def _skip_to_version(self) -> None:
        """Leave out what is before the next line that may begin a record, at least one byte."""
        while (found := self._ahead.find(b"\nWARC/")) < 0:
            self._taken(max(len(self._ahead) - len("\nWARC"), 0))
            if not self._more():
                self._taken(len(self._ahead))
                return
        self._taken(found + 1)

    def _fill(self, size: int) -> None:
        while len(self._ahead) < size and self._more():
            pass

    def _more(self) -> bool:
        block = self._stream.read(BLOCK_BYTES)
        self._ahead += block
        return bool(block)

    def _taken(self, size: int) -> bytes:
        taken = bytes(self._ahead[:size])
        del self._ahead[:size]
        self._first += size
        self._whole = max(self._whole - size, 0)
        return taken
