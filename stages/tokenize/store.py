"""Writes the token store that `stages.formats.tokens` reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stages.formats.tokens import ShardEntry, file_sha256


def smallest_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The narrowest type that holds every id of a vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def write_token_shard(
    folder: Path,
    name: str,
    documents: Sequence[Sequence[int]],
    infos: Sequence[dict[str, Any]],
    eos_id: int,
    dtype: Literal["uint16", "uint32"],
) -> ShardEntry:
    """Write one shard and return its entry for the manifest.

    `documents` holds ids without the end-of-sequence id, which is added here; `infos[i]` says where document i comes
    from and holds `bytes`, the size of its text.
    """
    lengths = np.array([len(ids) + 1 for ids in documents], dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    tokens = np.full(int(offsets[-1]), eos_id, dtype=np.dtype(dtype).newbyteorder("<"))
    for start, ids in zip(offsets, documents, strict=False):
        tokens[start : start + len(ids)] = ids
    tokens.tofile(folder / f"{name}.tokens.bin")
    offsets.astype("<i8").tofile(folder / f"{name}.offsets.bin")
    lines = "".join(json.dumps(info, sort_keys=True, ensure_ascii=False) + "\n" for info in infos)
    (folder / f"{name}.documents.jsonl").write_text(lines, encoding="utf-8")
    files = [f"{name}.tokens.bin", f"{name}.offsets.bin", f"{name}.documents.jsonl"]
    return ShardEntry(
        name=name,
        documents=len(documents),
        tokens=len(tokens),
        bytes=sum(info["bytes"] for info in infos),
        sha256={file: file_sha256(folder / file) for file in files},
    )
