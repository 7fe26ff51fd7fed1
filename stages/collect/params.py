"""What `collect` takes in: sources, licences, limits."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.runtime.section import Section

Bytes = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Name], Field(min_length=1)]
Share = Annotated[float, Field(gt=0, le=1)]


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
    max_bytes: Bytes | None
    """Bytes of text; null is no limit. The same order as packages."""


class Origin(Section):
    """What all sources of one's own have."""

    name: Name
    """The source's name in reports; documents of one source can be held out together."""
    revision: str
    """The source's version: a release or a commit; empty where there is none."""
    license: str
    """The SPDX expression of documents that name none themselves; empty is unknown."""
    share: Share
    """The weight of the source in a mixture: the share of its documents that is taken, drawn by a hash of their
    content. 1 takes all."""
    max_bytes: Bytes | None
    """Bytes of text to take, in the order of paths and rows; null is no limit. The first document that does not fit
    ends the source."""


class Located(Origin):
    """A source that consists of files, here or at any URL that fsspec opens."""

    globs: Names
    """Paths with `*`, `?`, `[...]` and `**`, relative to the project's root; a folder's name takes all below it. Or
    URLs with the same wildcards, e.g. `s3://bucket/code/*.jsonl`; over HTTP `?` begins the query, and a URL without
    wildcards is one document. A URL that holds a credential is refused."""


class Files(Located):
    """Text files, one document each. Rows and archives among them are left out, unless a glob names their ending."""

    kind: Literal["files"]


class Archives(Located):
    """Text files in .zip and .tar archives (also .tar.gz, .tar.bz2, .tar.xz), read without unpacking to the disk."""

    kind: Literal["archives"]
    suffixes: list[str]
    """Endings of the members to take, e.g. `.py`; empty takes all."""
    max_unpacked_bytes: Bytes
    """An archive that unpacks to more is refused: a decompression bomb, or a limit to raise on purpose."""


class Fields(Section):
    """Names of the fields (columns) with a row's own facts; null where a row does not say."""

    source: Name | None
    """e.g. `repo_name`: what documents are held out by."""
    path: Name | None
    """e.g. `path`; else the file's path and the row's number."""
    license: Name | None
    """e.g. `license`, an SPDX expression."""


class Jsonl(Located):
    """Lines of JSON objects, one document each."""

    kind: Literal["jsonl"]
    text: Name
    """The field with the text."""
    fields: Fields
    """Which fields of a row hold other facts."""


class Csv(Located):
    """CSV files with a heading, one document a row."""

    kind: Literal["csv"]
    text: Name
    """The column with the text."""
    fields: Fields
    """Which fields of a row hold other facts."""


class Parquet(Located):
    """Parquet files, one document a row."""

    kind: Literal["parquet"]
    text: Name
    """The column with the text."""
    fields: Fields
    """Which fields of a row hold other facts."""


class Hub(Origin):
    """A data set of the Hugging Face Hub, streamed.

    Its `revision` is a commit, so that it is the same tomorrow; a branch or a tag can move and is refused. For a folder
    it is empty or any text.
    """

    kind: Literal["hub"]
    repository: Name
    """e.g. `codeparrot/codeparrot-clean`, or the path of a folder laid out as one."""
    configuration: Name | None
    """The data set's configuration, where it has several."""
    split: Name
    """e.g. `train`."""
    text: Name
    """The column with the text."""
    fields: Fields
    """Which fields of a row hold other facts."""

    @model_validator(mode="after")
    def _revision_is_a_commit(self) -> Self:
        if not Path(self.repository).is_dir() and not re.fullmatch(r"[0-9a-f]{40}", self.revision):
            revision = f"the revision `{self.revision}`" if self.revision else "no revision"
            raise ValueError(
                f"data set `{self.repository}` has {revision}; "
                "name a commit (40 hex digits, on its page under History), so that it is the same tomorrow"
            )
        return self


Source = Annotated[
    Packages | StandardLibrary | Files | Archives | Jsonl | Csv | Parquet | Hub, Field(discriminator="kind")
]


class CollectParams(Section):
    """The section `collect` of params.yaml."""

    sources: Annotated[list[Source], Field(min_length=1)]
    """Taken in this order, mixed freely."""
    licenses: list[Name]
    """Allowed SPDX licence ids. An expression passes if allowed ones suffice for it (`OR` needs one of its parts)."""
    unlicensed: bool
    """Whether documents whose licence is unknown are taken."""
    max_document_bytes: Bytes
    """A larger document is skipped, without being read where its size is known before."""
    max_bytes: Bytes | None
    """Bytes of text over all sources; null is no limit. The first document that does not fit ends the corpus: nothing
    after it is read."""
    shard_bytes: Bytes
    """Bytes of text in a shard, before compression. Larger: fewer files; smaller: an edit costs less. Tens of shards
    of 64 to 256 MB serve at scale."""
