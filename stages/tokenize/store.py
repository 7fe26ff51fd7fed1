"""Writes the token store that `stages.formats.tokens` reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stages.formats.tokens import Positions, ShardEntry
from stages.runtime.hashes import file_sha256


def smallest_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The narrowest type that holds every id of a vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def write_token_shard(
    folder: Path,
    name: str,
    ids: npt.NDArray[np.uint32],
    lengths: Positions,
    infos: Sequence[dict[str, Any]],
    eos_id: int,
    dtype: Literal["uint16", "uint32"],
) -> ShardEntry:
    """Write one shard and return its entry for the manifest.

    `ids` holds the documents one after the other without the end-of-sequence id, which is added here; `lengths[i]` is
    the number of ids of document i; `infos[i]` says where it comes from and holds `bytes`, the size of its text.
    """
    offsets = np.cumulative_sum(lengths + 1, include_initial=True)
    is_text = np.ones(int(offsets[-1]), dtype=bool)
    is_text[offsets[1:] - 1] = False
    tokens = np.full(len(is_text), eos_id, dtype=np.dtype(dtype).newbyteorder("<"))
    tokens[is_text] = ids
    tokens.tofile(folder / f"{name}.tokens.bin")
    offsets.astype("<i8").tofile(folder / f"{name}.offsets.bin")
    lines = "".join(json.dumps(info, sort_keys=True, ensure_ascii=False) + "\n" for info in infos)
    (folder / f"{name}.documents.jsonl").write_text(lines, encoding="utf-8")
    files = [f"{name}.tokens.bin", f"{name}.offsets.bin", f"{name}.documents.jsonl"]
    return ShardEntry(
        name=name,
        documents=len(lengths),
        tokens=len(tokens),
        bytes=sum(info["bytes"] for info in infos),
        sha256={file: file_sha256(folder / file) for file in files},
    )
