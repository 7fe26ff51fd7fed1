"""Text files, one document each."""

import re
from collections.abc import Iterator
from typing import ClassVar, Literal

from stages.collect.compression import BROKEN, by_ending
from stages.collect.download import ahead
from stages.collect.located import LocatedFile, find
from stages.collect.opening import opened
from stages.collect.source_kinds import TOO_LARGE, FileSource, Reading, SourceItem

NO_TEXT = {
    "looks like JSON lines (use kind: jsonl)": re.compile(r"\.(jsonl|ndjson)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE),
    "looks like CSV (use kind: csv)": re.compile(r"\.csv(\.(gz|bz2|xz|zst))?$", re.IGNORECASE),
    "looks like Parquet (use kind: parquet)": re.compile(r"\.parquet$", re.IGNORECASE),
    "looks like an archive (use kind: archives)": re.compile(
        r"\.(zip|tar|tgz|tbz2|txz|tar\.(gz|bz2|xz|zst))$", re.IGNORECASE
    ),
    "looks compressed (decompress it)": re.compile(r"\.(lz4|7z|rar)$", re.IGNORECASE),
}
"""Why a file is left out whose name says that its content is no running text -> the name's ending."""

DAMAGED = "damaged, cut off, or not compressed as its name says"


class Files(FileSource):
    """Text files, one document each; `.txt.gz` (.bz2, .xz, .zst) is decompressed.

    Rows and archives among them are left out, unless a glob names their ending.
    """

    notable: ClassVar[tuple[str, ...]] = tuple(NO_TEXT)

    kind: Literal["files"]

    def items(self, reading: Reading) -> Iterator[SourceItem]:
        """Each file. One that cannot be read is left out with the reason; an unchanged one is not read.

        So are rows and archives, unless a glob names them by their ending: `corpus/*.jsonl` takes JSON as it is.
        """
        as_text = {file.name for file in find([pattern for pattern in self.globs if why_no_text(pattern)])}
        for file in ahead(find(self.globs), reading.max_document_bytes):
            reason = file.flaw or ("" if file.name in as_text else why_no_text(file.name))
            yield self.left_out(file.name, reason) if reason else self._read(file, reading)

    def _read(self, file: LocatedFile, reading: Reading) -> SourceItem:
        from stages.collect.content_check import check_content  # slow, and the parameters are checked without it

        limit = reading.max_document_bytes
        if file.size is not None and file.size > limit:
            return self.left_out(file.name, TOO_LARGE)
        if file.state is not None and (known := reading.seen.known(file.name, file.state)):
            return self.item(file.name, known)
        try:
            # A server that breaks off is no fault of the file: nothing is left out, the run ends.
            stream = opened(file) if "://" in file.name else file.open()
            with stream as raw, by_ending(file.name, raw) as text:
                content = text.read(limit + 1)
        except BROKEN as error:
            return self.left_out(file.name, f"unreadable: {getattr(error, 'strerror', None) or DAMAGED}")
        if len(content) > limit:
            return self.left_out(file.name, TOO_LARGE)
        found = check_content(content)
        if file.state is not None:
            reading.seen.remember(file.name, file.state, found)
        return self.item(file.name, found)


def why_no_text(name: str) -> str:
    """Why a file of this name is no text; empty where it may be one."""
    return next((reason for reason, ending in NO_TEXT.items() if ending.search(name)), "")
