"""The loss of each held-out document: what every number of the evaluation report can be recomputed from.

A row for each set, model and document, in that order; the documents of a set are in the same order for each model.
"""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from stages.formats.documents import write_table

DOCUMENT_LOSSES = Path("data/document_losses.parquet")

SCHEMA = pa.schema(
    [
        ("set", pa.string()),
        ("model", pa.string()),
        ("id", pa.string()),  # sha256 of the text
        ("source", pa.string()),
        ("path", pa.string()),
        ("bytes", pa.int64()),  # of the text in UTF-8
        ("tokens", pa.int64()),  # of the model's tokenizer, the closing id counted
        ("nats", pa.float64()),  # negative log-likelihood
    ]
)


def write_document_losses(path: Path, scored: Iterable[pa.Table]) -> None:
    """Write tables of this schema, one for each set and model, as one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, pa.concat_tables(scored).combine_chunks())
