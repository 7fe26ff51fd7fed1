"""What `collect` takes in: sources, licences, limits."""

from typing import Annotated, Literal

from pydantic import Field

from stages.formats.section import Section

Bytes = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Name], Field(min_length=1)]


class Packages(Section):
    """Python source of installed packages, at the versions that requirements.lock pins."""

    kind: Literal["packages"]
    names: Names
    """Distributions. Only pure-Python wheels are the same bytes on every platform; others are refused."""
    tests: bool
    """Whether files in a folder or module named `test...` are taken too."""
    max_bytes_each: Bytes | None
    """Bytes of text that one package may give; null is no limit. Files are taken in the order of a hash of their
    paths, so that a limit leaves a spread sample."""


class StandardLibrary(Section):
    """The standard library of the running Python. It differs per patch release, so the corpus does too."""

    kind: Literal["standard_library"]
    tests: bool
    """Whether its test suite (most of its bytes) is taken too."""
    max_bytes_each: Bytes | None
    """Bytes of text; null is no limit. The same order as packages."""


class Origin(Section):
    """What one's own files do not say themselves."""

    globs: Names
    """Paths with `*`, `?`, `[...]` and `**`, relative to the project's root; a folder's name takes all below it."""
    name: Name
    """The source's name in reports; documents of one source can be held out together."""
    revision: str
    """The source's version: a release or a commit; empty where there is none."""
    license: str
    """The SPDX expression of documents that name none themselves; empty is unknown."""
    max_bytes: Bytes | None
    """Bytes of text to take, in the order of paths and rows; null is no limit."""


class Files(Origin):
    """Text files, one document each."""

    kind: Literal["files"]


class Jsonl(Origin):
    """Lines of JSON objects, one document each."""

    kind: Literal["jsonl"]
    text: Name
    """The field with the text."""
    fields: "Fields"
    """Where other facts stand in a row."""


class Parquet(Origin):
    """Parquet files, one document a row."""

    kind: Literal["parquet"]
    text: Name
    """The column with the text."""
    fields: "Fields"
    """Where other facts stand in a row."""


class Fields(Section):
    """Names of the fields (columns) with a row's own facts; null where a row does not say."""

    source: Name | None
    """e.g. `repo_name`: what documents are held out by."""
    path: Name | None
    """e.g. `path`; else the file's path and the row's number."""
    license: Name | None
    """e.g. `license`, an SPDX expression."""


Source = Annotated[Packages | StandardLibrary | Files | Jsonl | Parquet, Field(discriminator="kind")]


class CollectParams(Section):
    """The section `collect` of params.yaml."""

    sources: Annotated[list[Source], Field(min_length=1)]
    """Taken in this order, mixed freely."""
    licenses: list[Name]
    """Allowed SPDX licence ids. An expression passes if a choice in it (`OR`) needs allowed ones only; a document
    without a licence passes only if its source is the user's own files and `unlicensed` is true."""
    unlicensed: bool
    """Whether one's own files without a stated licence are taken."""
    max_bytes: Bytes | None
    """Bytes of text over all sources; null is no limit. What comes later in the order is left out."""
    shard_bytes: Bytes
    """Bytes of text in a shard, before compression. Larger: fewer files; smaller: an edit costs less. Tens of shards
    of 64 to 256 MB serve at scale."""
