"""Data sets of the Hugging Face Hub, one document a row."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from stages.collect.rows import Fields, rows_as_items
from stages.collect.source_kinds import NamedSource, Names, SourceItem, SourceName
from stages.runtime.errors import message_on_one_line
from stages.runtime.hub import data_set_error
from stages.runtime.section import NamedFile


class Hub(NamedSource):
    """A data set of the Hugging Face Hub, streamed.

    Its `revision` is a commit, so that it is the same tomorrow; a branch or a tag can move and is refused. For a folder
    it is empty or any text.
    """

    kind: Literal["hub"]
    repository: Annotated[SourceName, AfterValidator(lambda name: NamedFile(name) if Path(name).is_dir() else name)]
    """e.g. `codeparrot/codeparrot-clean`, or the path of a folder laid out as one."""
    configuration: SourceName | None
    """The data set's configuration, if it has several."""
    split: SourceName
    """e.g. `train`."""
    text: Names
    """The fields that hold the text of a row: the first of these that is not blank."""
    fields: Fields
    """Which fields of a row hold other facts."""

    @model_validator(mode="after")
    def _revision_is_a_commit(self) -> Self:
        if not Path(self.repository).is_dir() and not re.fullmatch(r"[0-9a-f]{40}", self.revision):
            revision = f"the revision `{self.revision}`" if self.revision else "no revision"
            raise ValueError(
                f"data set `{self.repository}` has {revision}; "
                "name a commit (40 hex digits, on its page under History), so that its data cannot change"
            )
        return self

    def items(self, limit: int) -> Iterator[SourceItem]:
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
            rows = ((number, row or {}) for number, row in enumerate(builder.as_streaming_dataset(split=self.split), 1))
            yield from rows_as_items(self, rows, self.repository, self.text, self.fields)
        except (DatasetsError, OSError, ValueError, RuntimeError, HTTPError) as error:
            raise data_set_error(
                f"collect.sources: data set `{self.repository}` cannot be read ({message_on_one_line(error)})",
                error,
                "correct its name, revision or split, or download it where there is a network "
                "(`hf download --repo-type dataset`) and name its files as a source of kind `files`",
            ) from None
