"""Opens one file of a source that a run cannot do without."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from stages.collect.sources.places import Place
from stages.runtime.entry import UnavailableError, UserError


@contextmanager
def opened(place: Place) -> Iterator[BinaryIO]:
    """A file to read. Raises UserError that names it if it is no regular file or breaks off while it is read."""
    if not place.is_file:
        raise UserError(f"{place.name}: no regular file; correct or remove it")
    try:
        with place.open() as file:
            yield file
    except UserError:
        raise
    except Exception as error:  # each file system of fsspec has errors of its own
        said = f"{place.name}: cannot be read ({one_line(error)})"
        if "://" in place.name:
            raise UnavailableError(f"{said}; check the network and try again") from None
        if isinstance(error, OSError):
            raise UserError(f"{said}; correct or remove it") from None
        raise


def one_line(error: Exception) -> str:
    """What a library says of a fault, without its line breaks."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split()) or type(error).__name__
