"""The documents of each side, a shard for a shard."""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from stages.clean import masking
from stages.clean.masking import mask
from stages.clean.params import Masks
from stages.clean.verdicts import TRAIN, VALIDATION
from stages.formats.documents import Document, document_id, documents_of, read_shard, write_shard
from stages.runtime.shard_cache import cache_key, code_key, map_cached, shard_sha256

COUNTS = "masked.json"


@dataclass(frozen=True, slots=True)
class ShardSides:
    """One shard, where each of its rows goes, and what is masked in them."""

    shard: Path
    sides: list[str]
    """In the shard's order: `train`, `validation` or empty."""
    masks: Masks


def write_sides(
    shards: Sequence[Path], ledger: pd.DataFrame, masks: Masks, train: Path, validation: Path
) -> Counter[str]:
    """Write each shard's kept documents under its own name, and return how often something was masked, by its kind.

    A shard that keeps none on a side has no file there. A masked document stays in the shard of its original.
    """
    rows = dict(iter(ledger.groupby("shard")["side"]))
    work = [ShardSides(shard, list(rows[shard.name]), masks) for shard in shards if shard.name in rows]
    masked: Counter[str] = Counter()
    entries = map_cached("sides", work, sides_key, write_shard_sides)
    for item, entry in zip(work, entries, strict=True):
        for side, folder in ((TRAIN, train), (VALIDATION, validation)):
            if (entry / side).exists():
                shutil.copyfile(entry / side, folder / item.shard.name)
        masked.update(json.loads((entry / COUNTS).read_text(encoding="utf-8")))
    return masked


def sides_key(item: ShardSides) -> str:
    """Changes with anything that the files of one shard's sides hang on."""
    code = code_key([__file__, masking.__file__])
    return cache_key(code, item.masks.model_dump_json(), shard_sha256(item.shard), *item.sides)


def write_shard_sides(item: ShardSides, folder: Path) -> None:
    """Write one shard's documents as a file per side, and the counts of what was masked."""
    documents: dict[str, list[Document]] = {TRAIN: [], VALIDATION: []}
    counts: Counter[str] = Counter()
    for document, side in zip(documents_of(read_shard(item.shard)), item.sides, strict=True):
        if side:
            documents[side].append(masked_document(document, item.masks, counts))
    for side, kept in documents.items():
        if kept:
            write_shard(folder / side, sorted(kept, key=lambda document: document.sort_key))
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
