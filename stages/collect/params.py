"""The inputs of `collect`: sources, licenses, limits."""

from typing import TYPE_CHECKING, Annotated, TypeAlias, Union

from pydantic import Field

from stages.collect.source_kinds import Bytes, SourceKind, SourceName, source_kinds
from stages.runtime.section import Section

if TYPE_CHECKING:
    AnySource: TypeAlias = SourceKind
else:
    AnySource = Annotated[Union[source_kinds()], Field(discriminator="kind")]  # noqa: UP007 - made of a tuple

UpToGigabyte = Annotated[int, Field(ge=1, le=10**9)]


class CollectParams(Section):
    """The section `collect` of params.yaml."""

    sources: Annotated[list[AnySource], Field(min_length=1)]
    """Taken in this order, mixed freely."""
    licenses: list[SourceName]
    """Allowed SPDX license ids. An expression passes if allowed ones suffice for it (`OR` needs one of its parts)."""
    unlicensed: bool
    """Whether documents whose license is unknown are taken."""
    max_document_bytes: UpToGigabyte
    """A larger document is skipped. At most 1 GB, as `shard_bytes`."""
    max_bytes: Bytes | None
    """Bytes of text over all sources; null is no limit. The first document that does not fit ends the corpus: nothing
    after it is read."""
    shard_bytes: UpToGigabyte
    """Bytes of text in a shard, before compression. At most 1 GB (an Arrow text column holds 2 GB). Larger shards
    mean fewer files, smaller ones cheaper edits; 64 to 256 MB suit large corpora."""
