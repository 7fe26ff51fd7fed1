"""Text files, one document each."""

from collections.abc import Iterator

from stages.collect.content import SeenFiles, look
from stages.collect.params import Files
from stages.collect.raw import LeftOut, Raw
from stages.collect.sources.opened import opened
from stages.collect.sources.places import find


def read_files(source: Files, max_document_bytes: int, seen: SeenFiles) -> Iterator[Raw | LeftOut]:
    """Each file as one document. One that cannot be read is left out with the reason; an unchanged one is not read."""
    for place in find(source.globs):
        if not place.is_file:
            yield LeftOut(source.name, place.name, "no regular file")
        elif place.size is not None and place.size > max_document_bytes:
            yield LeftOut(source.name, place.name, "larger than max_document_bytes")
        elif place.state is not None and (known := seen.known(place.name, place.state)):
            yield Raw(source.name, source.revision, place.name, source.license, known)
        else:
            try:
                # A server that breaks off is no fault of the file: nothing is left out, the run ends.
                with opened(place) if "://" in place.name else place.open() as file:
                    content = file.read(max_document_bytes + 1)
            except OSError as error:
                yield LeftOut(source.name, place.name, f"unreadable: {error.strerror or type(error).__name__}")
            else:
                if len(content) > max_document_bytes:
                    yield LeftOut(source.name, place.name, "larger than max_document_bytes")
                    continue
                found = look(content)
                if place.state is not None:
                    seen.remember(place.name, place.state, found)
                yield Raw(source.name, source.revision, place.name, source.license, found)
