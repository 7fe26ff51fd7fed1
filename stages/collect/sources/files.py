"""Text files, one document each."""

import re
from collections.abc import Iterator

from stages.collect.content_check import ContentCheck, SeenFiles, check_content
from stages.collect.params import Files
from stages.collect.raw import TOO_LARGE, LeftOut, RawDocument
from stages.collect.sources.located import LocatedFile, find
from stages.collect.sources.opened import opened

NO_TEXT = {
    "looks like JSON lines (use kind: jsonl)": re.compile(r"\.(jsonl|ndjson)(\.(gz|bz2|xz))?$", re.IGNORECASE),
    "looks like CSV (use kind: csv)": re.compile(r"\.csv(\.(gz|bz2|xz))?$", re.IGNORECASE),
    "looks like Parquet (use kind: parquet)": re.compile(r"\.parquet$", re.IGNORECASE),
    "looks like an archive (use kind: archives)": re.compile(
        r"\.(zip|tar|tgz|tbz2|txz|tar\.(gz|bz2|xz))$", re.IGNORECASE
    ),
    "looks compressed (decompress it)": re.compile(r"\.(gz|bz2|xz|zst|lz4|7z|rar)$", re.IGNORECASE),
}
"""Why a file is left out whose name says that its content is no running text -> the name's ending."""


def read_files(source: Files, max_document_bytes: int, seen: SeenFiles) -> Iterator[RawDocument | LeftOut]:
    """Each file as one document. One that cannot be read is left out with the reason; an unchanged one is not read.

    So are rows and archives, unless a glob names them by their ending: `corpus/*.jsonl` takes JSON as it is.
    """
    named = [pattern for pattern in source.globs if why_no_text(pattern)]
    as_text = {file.name for file in find(named)}
    for file in find(source.globs):
        reason, found = file.flaw or (file.name not in as_text and why_no_text(file.name)) or "", None
        if not reason:
            reason, found = _read(file, max_document_bytes, seen)
        if found is None:
            yield LeftOut(source.name, file.name, reason)
        else:
            yield RawDocument(source.name, source.revision, file.name, source.license, found)


def why_no_text(name: str) -> str:
    """Why a file of this name is no text; empty where it may be one."""
    return next((reason for reason, ending in NO_TEXT.items() if ending.search(name)), "")


def _read(file: LocatedFile, limit: int, seen: SeenFiles) -> tuple[str, ContentCheck | None]:
    """What is in a file, or why it is left out."""
    if file.size is not None and file.size > limit:
        return TOO_LARGE, None
    if file.state is not None and (known := seen.known(file.name, file.state)):
        return "", known
    try:
        # A server that breaks off is no fault of the file: nothing is left out, the run ends.
        with opened(file) if "://" in file.name else file.open() as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        return f"unreadable: {error.strerror or type(error).__name__}", None
    if len(content) > limit:
        return TOO_LARGE, None
    found = check_content(content)
    if file.state is not None:
        seen.remember(file.name, file.state, found)
    return "", found
