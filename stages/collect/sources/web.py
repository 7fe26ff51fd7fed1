"""Web pages, one document each: HTML files and WARC files, as crawlers write them.

resiliparse extracts their text, its fastwarc reads WARC files (the group `web`). Against trafilatura, on 80 pages of
documentation (2.4 MB): 42 MB per CPU second against 3.2; 97 % of the words of the main part against 95 %; 78 % of the
extracted words belong to the main part, against 98 %. It has two libraries to install, trafilatura about ten.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Literal

from stages.collect.find import find, opened
from stages.collect.source_kinds import TOO_LARGE, SourceItem
from stages.collect.sources.files import FileSource
from stages.runtime.credentials import without_credentials
from stages.runtime.errors import UserError
from stages.runtime.stage_code import require_locked

WEB_LIBRARIES = ("resiliparse", "fastwarc")
"""What the text depends on: requirements.lock must pin them."""

HTML_TYPES = ("text/html", "application/xhtml+xml")
"""The media types of web pages (RFC 2854, RFC 3236)."""


class WebSource(FileSource):
    """A kind of source that reads web pages."""

    main_content: bool
    """Whether navigation, headers and footers are left out, as far as rules of thumb find them."""

    @property
    def libraries(self) -> list[str]:
        """What extracts the text. Raises UserError that says how to install it if it is not."""
        if missing := [name for name in WEB_LIBRARIES if find_spec(name) is None]:
            raise UserError(
                f"collect.sources: web pages need {' and '.join(missing)}: `pip install -e '.[web]'`, then write the "
                "versions of resiliparse and fastwarc that `pip list` shows into requirements.lock, as NAME==VERSION"
            )
        require_locked("resiliparse", "fastwarc")
        return list(WEB_LIBRARIES)


class Html(WebSource):
    """HTML files; the visible text of each is a document."""

    kind: Literal["html"]

    def items(self, limit: int) -> Iterator[SourceItem]:
        """Each page. Raises UserError that names a file that cannot be read."""
        for file in find(self.globs):
            if file.flaw:
                yield self.left_out(file.name, file.flaw)
                continue
            with opened(file) as stream:
                html = stream.read(limit + 1)
            if len(html) > limit:
                yield self.left_out(file.name, TOO_LARGE)
            else:
                yield self.item(file.name, page_text(html, None, self.main_content))


class Warc(WebSource):
    """WARC files (ISO 28500) of crawls: their HTML pages, and the plain texts of WET files, which are taken as they
    are. fastwarc does not notice a cut-off end, and a page that is not encoded as its server said ends the run."""

    kind: Literal["warc"]

    def items(self, limit: int) -> Iterator[SourceItem]:
        """Each page, by its address. Raises UserError that names a file that cannot be read."""
        from fastwarc.warc import ArchiveIterator, WarcRecordType

        wanted = WarcRecordType.response | WarcRecordType.conversion
        for file in find(self.globs):
            if file.flaw:
                yield self.left_out(file.name, file.flaw)
                continue
            with opened(file, decompress=False) as stream:  # fastwarc decompresses by itself
                for record in ArchiveIterator(stream, record_types=wanted, auto_decode="all"):
                    address = without_credentials((record.headers.get("WARC-Target-URI") or "").strip("<>"))
                    is_page = record.record_type == WarcRecordType.response
                    if is_page and (record.http_headers is None or record.http_headers.status_code != 200):
                        yield self.left_out(address, "page with another status than 200")
                    elif is_page and record.http_content_type not in HTML_TYPES:
                        yield self.left_out(address, "no HTML page")
                    elif len(content := record.reader.read(limit + 1)) > limit:
                        yield self.left_out(address, TOO_LARGE)
                    elif is_page:
                        yield self.item(address, page_text(content, record.http_charset, self.main_content))
                    else:
                        yield self.item(address, content)


def page_text(html: bytes, encoding: str | None, main_content: bool) -> str:
    """The visible text of a page, a line for each block. The encoding is the server's, else the one that the page
    names, else what its bytes look like (as in HTML5)."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import detect_encoding
    from resiliparse.parse.html import HTMLTree

    found = encoding or detect_encoding(html, html5_compatible=True) or "utf-8"
    tree = HTMLTree.parse_from_bytes(html, found)
    text: str = extract_plain_text(tree, main_content=main_content, preserve_formatting=True)
    return text
