"""Web pages, one document each: HTML files and WARC files, as crawlers write them."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from stages.collect.extraction import DAMAGED, page_text, read_pages, required_libraries
from stages.collect.located import LocatedFile
from stages.collect.opening import decompressed
from stages.collect.source_kinds import TOO_LARGE, FileSource, SourceItem
from stages.runtime.credentials import without_credentials


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
        """Each page, by its address, and each damaged part, by the number of its first byte.

        Raises UserError that names a file that is cut off, or whose compression is damaged.
        """
        with decompressed(file) as stream:
            for page in read_pages(stream, limit):
                address = without_credentials(page.address)
                if page.reason == DAMAGED:
                    yield self.left_out(f"{file.name}{page.address}", page.reason)
                elif page.reason:
                    yield self.left_out(address, page.reason)
                elif page.is_html:
                    yield self.item(address, page_text(page.content, page.encoding, self.main_content))
                else:
                    yield self.item(address, page.content)
