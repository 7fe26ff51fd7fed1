"""Rows of tables, one document each: Parquet files and data sets of the Hub."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from stages.collect.located import LocatedFile, one_line, opened
from stages.collect.source_kinds import FileSource, Name, Reading, RowSource, SourceItem
from stages.runtime.entry import UserError
from stages.runtime.hub import data_set_error

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_A_TIME = 1000


class Parquet(FileSource, RowSource):
    """Parquet files, one document a row."""

    kind: Literal["parquet"]

    def items_of(self, file: LocatedFile, limit: int) -> Iterator[SourceItem]:
        """Each row. Raises UserError if the file is not Parquet or lacks a named column, or has it twice. A binary
        column may hold the text, as UTF-8: some writers know no other strings."""
        import pyarrow as pa  # slow, and the parameters are checked without it
        import pyarrow.parquet as pq

        broken = (pa.ArrowException, OSError, UnicodeError)
        wanted = [name for name in (self.text, *self.fields.model_dump().values()) if name is not None]
        with opened(file) as stream:
            try:
                table = pq.ParquetFile(stream, page_checksum_verification=True)
            except broken as error:
                raise UserError(f"{file.name}: no readable Parquet file ({one_line(error)})") from None
            for name in wanted:
                _require_column(file.name, name, list(table.schema_arrow))
            number = 0
            try:
                for batch in table.iter_batches(ROWS_AT_A_TIME, columns=wanted):
                    for row in batch.to_pylist():
                        number += 1
                        yield self.row(row, f"{file.name}#{number}")
            except broken as error:
                raise UserError(f"{file.name}: damaged after row {number} ({one_line(error)})") from None


def _require_column(file: str, name: str, fields: "list[pa.Field]", within: str = "") -> None:
    """Raise UserError unless a file has a column once, by its name or nested in another one (`meta.text`)."""
    names = [field.name for field in fields]
    # As `field_of` reads a row: the whole name first, then the shortest beginning of it.
    ends = [len(name), *(position for position, character in enumerate(name) if character == ".")]
    column = next((name[:end] for end in ends if name[:end] in names), None)
    if column is None:
        raise UserError(f"{file}: no column `{within}{name}`; it has {', '.join(within + name for name in names)}")
    if names.count(column) > 1:
        raise UserError(f"{file}: several columns are named `{within}{column}`; rename them")
    if rest := name[len(column) + 1 :]:
        nested = fields[names.index(column)].type
        inner = nested.fields if hasattr(nested, "fields") else []
        _require_column(file, rest, inner, f"{within}{column}.")


class Hub(RowSource):
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

    @model_validator(mode="after")
    def _revision_is_a_commit(self) -> Self:
        if not Path(self.repository).is_dir() and not re.fullmatch(r"[0-9a-f]{40}", self.revision):
            revision = f"the revision `{self.revision}`" if self.revision else "no revision"
            raise ValueError(
                f"data set `{self.repository}` has {revision}; "
                "name a commit (40 hex digits, on its page under History), so that it is the same tomorrow"
            )
        return self

    @property
    def places(self) -> list[str]:
        """A folder; a data set of the Hub is named by a commit, which does not change."""
        return [self.repository] if Path(self.repository).is_dir() else []

    def items(self, reading: Reading) -> Iterator[SourceItem]:
        """Each row, streamed. Raises UnavailableError if the Hub does not answer, UserError if it has no such data set,
        revision or split, or does not give it to us."""
        # A second of imports: only where a data set is read.
        from datasets import load_dataset_builder
        from datasets.exceptions import DatasetsError
        from datasets.packaged_modules.parquet.parquet import ParquetConfig
        from httpx2 import HTTPError
        from pyarrow.dataset import ParquetFragmentScanOptions

        try:
            # As `load_dataset(..., streaming=True)` does, and with the checksums of Parquet's pages.
            builder = load_dataset_builder(self.repository, self.configuration, revision=self.revision or None)
            if isinstance(builder.config, ParquetConfig):
                builder.config.fragment_scan_options = ParquetFragmentScanOptions(page_checksum_verification=True)
            rows = builder.as_streaming_dataset(split=self.split)
            for number, row in self.noted(enumerate(rows, start=1), self.repository):
                yield self.row(row or {}, f"{self.repository}#{number}")
        except (DatasetsError, OSError, ValueError, RuntimeError, HTTPError) as error:
            raise data_set_error(
                f"collect.sources: data set `{self.repository}` cannot be read ({one_line(error)})",
                error,
                "correct its name, revision or split, or download it where there is a network "
                "(`hf download --repo-type dataset`) and name its files as a source of kind `parquet`",
            ) from None
