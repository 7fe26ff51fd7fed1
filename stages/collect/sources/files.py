"""Text files, one document each."""

from collections.abc import Iterator

from stages.collect.params import Files
from stages.collect.raw import LeftOut, Raw
from stages.collect.sources.places import find


def read_files(source: Files, max_document_bytes: int) -> Iterator[Raw | LeftOut]:
    """Each file as one document; one that cannot be read is left out with the reason."""
    for place in find(source.globs):
        if not place.is_file:
            yield LeftOut(source.name, place.name, "no regular file")
        elif place.size is not None and place.size > max_document_bytes:
            yield LeftOut(source.name, place.name, "larger than max_document_bytes")
        else:
            try:
                with place.open() as file:
                    content = file.read(max_document_bytes + 1)
            except OSError as error:
                yield LeftOut(source.name, place.name, f"unreadable: {error.strerror or type(error).__name__}")
            else:
                yield Raw(source.name, source.revision, place.name, source.license, content)
