"""Text files, one document each."""

from collections.abc import Iterator

from stages.collect.content_check import ContentCheck, SeenFiles, check_content
from stages.collect.params import Files
from stages.collect.raw import TOO_LARGE, LeftOut, RawDocument
from stages.collect.sources.located import LocatedFile, find
from stages.collect.sources.opened import opened


def read_files(source: Files, max_document_bytes: int, seen: SeenFiles) -> Iterator[RawDocument | LeftOut]:
    """Each file as one document. One that cannot be read is left out with the reason; an unchanged one is not read."""
    for file in find(source.globs):
        reason, found = _read(file, max_document_bytes, seen)
        if found is None:
            yield LeftOut(source.name, file.name, reason)
        else:
            yield RawDocument(source.name, source.revision, file.name, source.license, found)


def _read(file: LocatedFile, limit: int, seen: SeenFiles) -> tuple[str, ContentCheck | None]:
    """What is in a file, or why it is left out."""
    if file.flaw:
        return file.flaw, None
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
