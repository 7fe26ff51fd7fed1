"""What `collect` takes and leaves out, run in the working directory."""

from pathlib import Path
from typing import Any

from stages.collect.__main__ import main
from stages.formats.documents import Document, read_documents
from stages.formats.reports import read_json
from tests.small_project import FILES_SOURCE, write_project

NO_FIELDS: dict[str, str | None] = {"source": None, "path": None, "license": None}

ORIGIN = {name: FILES_SOURCE[name] for name in ("name", "revision", "license", "share", "max_bytes")}
"""The parameters that a kind of source with a name has."""


def collect(*sources: dict[str, Any], **changes: Any) -> list[Document]:
    """The documents of the sources, in the order of their ids."""
    write_project(Path(), collect__sources=list(sources) or [FILES_SOURCE], **changes)
    main()
    return list(read_documents(Path("data/documents")))


def files(*globs: str, **changes: Any) -> dict[str, Any]:
    """A source of kind `files`: by default all of corpus/."""
    return FILES_SOURCE | {"globs": list(globs) or ["corpus"]} | changes


def report() -> dict[str, Any]:
    """The report of the last run."""
    values: dict[str, Any] = read_json(Path("reports/collect.json"))
    return values


def left_out() -> dict[str, int]:
    """Reason -> how many texts the last run left out."""
    counts: dict[str, int] = report()["left_out"]
    return counts
