"""Shards whose documents are masked. Every other step of cleaning reads these, so that duplicates, passages of
evaluation sets and the split are judged on the text that the model sees."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from stages.clean.masking import mask
from stages.clean.params import Masks
from stages.formats.documents import Document, document_id, documents_of, read_shard, write_shard
from stages.runtime.cache import cache_key, map_cached, shard_sha256

COUNTS = "counts.json"


@dataclass(frozen=True, slots=True)
class MaskedShards:
    """Shards under the names of their originals, with as many documents, in the same order."""

    paths: list[Path]
    counts: pd.DataFrame
    """How many values were masked: a row per document over all shards, a column per kind."""


def mask_shards(shards: Sequence[Path], masks: Masks) -> MaskedShards:
    """The shards with what the parameters name replaced; the originals where they name nothing.

    A masked document has the id of its new text and stays in the shard of its original.
    """
    kinds = [kind for kind, is_on in masks.model_dump().items() if is_on]
    if not kinds:
        return MaskedShards(list(shards), pd.DataFrame())
    entries = map_cached("masked", shards, partial(_key, masks), partial(_mask_shard, masks))
    rows = [row for entry in entries for row in json.loads((entry / COUNTS).read_text(encoding="utf-8"))]
    counts = pd.DataFrame(rows, columns=kinds).fillna(0).astype(int)
    return MaskedShards([entry / shard.name for entry, shard in zip(entries, shards, strict=True)], counts)


def _key(masks: Masks, shard: Path) -> str:
    return cache_key(masks.model_dump_json(), shard.name, shard_sha256(shard))


def _mask_shard(masks: Masks, shard: Path, folder: Path) -> None:
    documents, counts = [], []
    for document in documents_of(read_shard(shard)):
        masked = mask(document.text, masks)
        origin = (document.source, document.revision, document.path, document.license)
        documents.append(Document(document_id(masked.text), *origin, masked.text))
        counts.append(masked.found)
    write_shard(folder / shard.name, documents)
    (folder / COUNTS).write_text(json.dumps(counts), encoding="utf-8")
