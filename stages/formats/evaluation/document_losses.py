"""The loss of each held-out document: what every number of the evaluation report can be recomputed from.

A row for each set, model and document, in that order; the documents of a set are in the same order for each model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.formats.documents import read_table, write_table

DOCUMENT_LOSSES = Path("data/document_losses.parquet")

SCHEMA = pa.schema(
    [
        ("set", pa.string()),
        ("model", pa.string()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("path", pa.string()),
        ("bytes", pa.int64()),
        ("tokens", pa.int64()),
        ("nats", pa.float64()),
    ]
)


@dataclass(frozen=True)
class DocumentLosses:
    """One set scored by one model; a column for each field, a row for each document."""

    set: str
    model: str
    ids: Sequence[str]
    """sha256 of the text."""
    sources: Sequence[str]
    paths: Sequence[str]
    bytes: npt.NDArray[np.int64]
    """Of the text in UTF-8."""
    tokens: npt.NDArray[np.int64]
    """Of the model's tokenizer, the closing id counted."""
    nats: npt.NDArray[np.float64]
    """Negative log-likelihood."""


def write_document_losses(path: Path, scored: Iterable[DocumentLosses]) -> None:
    """Write all of them as one table."""
    tables = []
    for part in scored:
        count = len(part.ids)
        columns = [[part.set] * count, [part.model] * count, part.ids, part.sources, part.paths]
        tables.append(pa.table([*columns, part.bytes, part.tokens, part.nats], schema=SCHEMA))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, pa.concat_tables(tables).combine_chunks())


def read_document_losses(path: Path = DOCUMENT_LOSSES) -> pa.Table:
    """The table. Raises UserError that names a damaged file."""
    return read_table(path)
