"""Text files, one document each."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from stages.collect.located import COMPRESSED, NOT_READ, LocatedFile, by_ending, find, has_ending, opened
from stages.collect.source_kinds import TOO_LARGE, FileSource, Reading, SourceItem

MAYBE_COMPRESSED = ("", *COMPRESSED)

ENDINGS: dict[str, tuple[str, ...]] = {
    "jsonl": tuple(f".{name}{end}" for name in ("jsonl", "ndjson") for end in MAYBE_COMPRESSED),
    "csv": tuple(f".csv{end}" for end in MAYBE_COMPRESSED),
    "parquet": (".parquet",),
    "archives": (".zip", ".tgz", ".tbz2", ".txz", *(f".tar{end}" for end in MAYBE_COMPRESSED)),
}
"""Kind -> how the names of its files end, in upper or lower case; all other files are text."""

NO_TEXT = {
    "looks like JSON lines (use kind: jsonl)": ENDINGS["jsonl"],
    "looks like CSV (use kind: csv)": ENDINGS["csv"],
    "looks like Parquet (use kind: parquet)": ENDINGS["parquet"],
    "looks like an archive (use kind: archives)": ENDINGS["archives"],
    "looks compressed (decompress it)": NOT_READ,
}
"""Why a file is left out whose name says that its content is no running text -> the name's ending."""


class Files(FileSource):
    """Text files, one document each; `.txt.gz` (.bz2, .xz, .zst) is decompressed.

    Rows and archives among them are left out, unless a glob names their ending.
    """

    notable: ClassVar[tuple[str, ...]] = tuple(NO_TEXT)

    kind: Literal["files"]

    def items(self, reading: Reading) -> Iterator[SourceItem]:
        """Each file. Left out are those that cannot be read, and rows and archives, unless a glob names them by their
        ending: `corpus/*.jsonl` takes JSON as it is."""
        from stages.collect.reading import text_items  # slow, and the parameters are checked without it

        as_text = {file.name for file in find([pattern for pattern in self.globs if why_no_text(pattern)])}
        yield from text_items(
            self, find(self.globs), reading, lambda name: "" if name in as_text else why_no_text(name)
        )

    def items_of(self, file: LocatedFile, limit: int) -> Iterator[SourceItem]:
        """A file at a URL. A server that breaks off is no fault of the file: nothing is left out, the run ends."""
        with opened(file) as stream, by_ending(file.name, stream) as text:
            content = text.read(limit + 1)
        yield self.left_out(file.name, TOO_LARGE) if len(content) > limit else self.item(file.name, content)


def why_no_text(name: str) -> str:
    """Why a file of this name is no text; empty where it may be one."""
    return next((reason for reason, endings in NO_TEXT.items() if has_ending(name, endings)), "")


def kind_of(name: str) -> str:
    """The kind of source that a file of this name is of; empty for text."""
    return next((kind for kind, endings in ENDINGS.items() if has_ending(name, endings)), "")
