"""What turns text into ids: fastokens, and tokenizers as the reference.

Text is only ever text here: a special token's name in a document is encoded letter by letter.
"""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import fastokens
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from stages.formats.tokens import Positions

FlatIds = npt.NDArray[np.uint32]


class Engine(Protocol):
    """Encodes many texts at once."""

    name: str
    """With its version, as the report says it."""

    def encode(self, texts: Sequence[str]) -> tuple[FlatIds, Positions]:
        """All ids one text after the other, and the number of ids of each text; shapes (ids,) and (texts,)."""
        ...


class Reference:
    """The library `tokenizers`, which defines what is right."""

    name = f"tokenizers {version('tokenizers')}"

    def __init__(self, tokenizer_json: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_json))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: Sequence[str]) -> tuple[FlatIds, Positions]:
        """As `Engine.encode`."""
        encodings = [item.ids for item in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        lengths = np.array([len(ids) for ids in encodings], dtype=np.int64)
        flat = np.fromiter((number for ids in encodings for number in ids), dtype=np.uint32, count=int(lengths.sum()))
        return flat, lengths


class Fast:
    """The library `fastokens`."""

    name = f"fastokens {version('fastokens')}"

    def __init__(self, tokenizer_json: Path) -> None:
        self._tokenizer = fastokens.Tokenizer.from_file(str(tokenizer_json))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str]) -> tuple[FlatIds, Positions]:
        """As `Engine.encode`."""
        ids, ends = self._tokenizer.encode_batch_flat(list(texts), add_special_tokens=False, split_special_tokens=True)
        offsets = np.frombuffer(ends, dtype="<u8").astype(np.int64)
        return np.frombuffer(ids, dtype="<u4"), offsets[1:] - offsets[:-1]


def open_engine(name: str, tokenizer_json: Path) -> Engine:
    """The engine with that name, with or without its version."""
    return Fast(tokenizer_json) if name.startswith("fastokens") else Reference(tokenizer_json)
