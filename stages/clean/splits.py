"""Writes the documents of each split, a shard for a shard."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from stages.clean.masking import mask
from stages.clean.params import Masks
from stages.formats.documents import Document, document_id, documents_of, read_shard, write_shard
from stages.formats.splits import SPLITS
from stages.runtime.shard_cache import cache_key, map_cached, shard_sha256

COUNTS = "masked.json"


@dataclass(frozen=True, slots=True)
class ShardSplits:
    """One shard, where each of its rows goes, and what is masked in them."""

    shard: Path
    splits: list[str]
    """In the shard's order: `train`, `validation` or empty."""
    masks: Masks


def write_splits(
    shards: Sequence[Path], ledger: pd.DataFrame, masks: Masks, folders: Mapping[str, Path]
) -> Counter[str]:
    """Write each shard's kept documents under its own name, and return how often something was masked, by its kind.

    A shard that keeps none for a split has no file there. A masked document stays in the shard of its original.
    """
    rows = dict(iter(ledger.groupby("shard")["split"]))
    work = [ShardSplits(shard, list(rows[shard.name]), masks) for shard in shards if shard.name in rows]
    masked: Counter[str] = Counter()
    entries = map_cached("splits", work, splits_key, write_shard_splits)
    for item, entry in zip(work, entries, strict=True):
        for split, folder in folders.items():
            if (entry / split).exists():
                shutil.copyfile(entry / split, folder / item.shard.name)
        masked.update(json.loads((entry / COUNTS).read_text(encoding="utf-8")))
    return masked


def splits_key(item: ShardSplits) -> str:
    """Changes with the data that the files of one shard's splits depend on."""
    return cache_key(item.masks.model_dump_json(), shard_sha256(item.shard), *item.splits)


def write_shard_splits(item: ShardSplits, folder: Path) -> None:
    """Write one shard's documents as a file per split, and the counts of what was masked."""
    documents: dict[str, list[Document]] = {split: [] for split in SPLITS}
    counts: Counter[str] = Counter()
    for document, split in zip(documents_of(read_shard(item.shard)), item.splits, strict=True):
        if split:
            documents[split].append(masked_document(document, item.masks, counts))
    for split, kept in documents.items():
        if kept:
            write_shard(folder / split, sorted(kept, key=lambda document: document.sort_key))
    (folder / COUNTS).write_text(json.dumps(counts), encoding="utf-8")


def masked_document(document: Document, masks: Masks, counts: Counter[str]) -> Document:
    """The document with what is masked replaced; its id is that of the text it has now."""
    masked = mask(document.text, masks)
    if masked.text == document.text:
        return document
    counts.update(masked.found)
    counts["documents"] += 1
    origin = (document.source, document.revision, document.path, document.license)
    return Document(document_id(masked.text), *origin, masked.text)
