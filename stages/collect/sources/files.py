"""Text files, one document each."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from stages.collect.located import LocatedFile, by_ending, find, opened
from stages.collect.remote import ahead
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
        limit = reading.max_document_bytes
        as_text = {file.name for file in find([pattern for pattern in self.globs if why_no_text(pattern)])}
        files = find(self.globs)
        reasons = {file.name: reason for file in files if (reason := _why_left_out(file, as_text, limit))}
        yield from text_items(self, files, reasons, reading)

    def items_of(self, file: LocatedFile, limit: int) -> Iterator[SourceItem]:
        """A file at a URL. A server that breaks off is no fault of the file: nothing is left out, the run ends."""
        with opened(file) as stream, by_ending(file.name, stream) as text:
            content = text.read(limit + 1)
        yield self.left_out(file.name, TOO_LARGE) if len(content) > limit else self.item(file.name, content)


def text_items(
    source: FileSource,
    files: Sequence[LocatedFile],
    reasons: Mapping[str, str],
    reading: Reading,
    apart: Callable[[str], object] = lambda name: False,
) -> Iterator[SourceItem]:
    """The items of a source's files: text files, and files (by their names, `apart`) that `items_of` reads.

    `reasons` says of a file's name why it is left out.
    """
    from stages.collect.reading import checks_of  # slow, and the parameters are checked without it

    by_themselves = {file.name for file in files if file.state is None or apart(file.name)}
    local = [file for file in files if file.name not in by_themselves and file.name not in reasons]
    checks = checks_of(local, reading)
    for file in ahead(files, reading.max_document_bytes):
        if file.name in reasons:
            yield source.left_out(file.name, reasons[file.name])
        elif file.name in by_themselves:
            yield from source.items_of(file, reading.max_document_bytes)
        else:
            found = next(checks)
            yield source.left_out(file.name, found) if isinstance(found, str) else source.item(file.name, found)


def _why_left_out(file: LocatedFile, as_text: Collection[str], limit: int) -> str:
    """Why a file is not read; empty where it is."""
    reason = file.flaw or ("" if file.name in as_text else why_no_text(file.name))
    return reason or (TOO_LARGE if file.size is not None and file.size > limit else "")


def why_no_text(name: str) -> str:
    """Why a file of this name is no text; empty where it may be one."""
    return next((reason for reason, ending in NO_TEXT.items() if ending.search(name)), "")
