"""The token store: documents as token ids, flat on disk, read by memory map.

A folder with a `manifest.json` and, per shard NAME,

    NAME.tokens.bin       every document's ids one after the other, each closed by the end-of-sequence id;
                          little-endian, uint16 if the vocabulary allows, else uint32
    NAME.offsets.bin      int64, one more than there are documents: document i is tokens[offsets[i]:offsets[i + 1]]
    NAME.documents.jsonl  line i says where document i comes from: id, source, revision, path, license, bytes of text

Documents, not rows of a fixed length: packing is an index built later, so a change of the sequence length never
tokenizes again.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from stages.runtime.atomic import file_sha256
from stages.runtime.errors import UserError, first_line

TOKENS = Path("data/tokens")
"""`TOKENS / TRAIN` and `TOKENS / VALIDATION` are token stores."""

TRAIN = "train"
"""The split that the model is trained on."""

VALIDATION = "validation"
"""The split that is held out, to measure the model on."""

SPLITS = (TRAIN, VALIDATION)
"""Each has a folder of that name among the clean documents and among the tokens."""

STORE_MANIFEST = "manifest.json"

MAPPED_SHARDS = 64
"""Mapped at once. Each takes a file descriptor, and shells limit those of a process to 1,024 (macOS: 256)."""

TokenIds: TypeAlias = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Dtype: TypeAlias = Literal["uint16", "uint32"]
Positions: TypeAlias = npt.NDArray[np.int64]


def read_of_corpus(tokens: int, corpus: int) -> str:
    """Describe how much of a corpus a training reads: the tokens of both, and the epochs."""
    return f"{tokens:,} tokens of a corpus of {corpus:,} ({tokens / corpus:.2f} epochs)"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """The manifest's entry of one shard."""

    name: str
    documents: int
    tokens: int
    """Token ids, the end-of-sequence ids counted."""
    bytes: int
    """UTF-8 bytes of the documents' text."""
    sha256: dict[str, str]
    """File name -> sha256, for each of the shard's three files."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a token store, and the tools that made it."""

    dtype: Dtype
    vocab_size: int
    eos_id: int
    tokenizer_sha256: str
    """The sha256 of the tokenizer's `tokenizer.json`."""
    engine: str
    """What encoded the text: fastokens (with ids proven equal to those of tokenizers) or tokenizers."""
    shards: tuple[ShardEntry, ...]

    @property
    def documents(self) -> int:
        """Documents in the store."""
        return sum(shard.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Token ids in the store, the end-of-sequence ids counted."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of text in the store."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def summary(self) -> dict[str, Any]:
        """The metrics of `reports/tokenize.json` about one split."""
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "bytes_per_token": round(self.bytes / self.tokens, 4) if self.tokens else 0.0,
        }

    def to_json(self) -> str:
        """The manifest's text, the same for the same values."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


class TokenStore:
    """A token store opened for reading. Token positions and document numbers run through all shards."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError if the folder is not a token store or a file does not have the size in the manifest."""
        self.folder = folder
        try:
            self.manifest = TypeAdapter(Manifest).validate_json((folder / STORE_MANIFEST).read_bytes())
        except FileNotFoundError:
            raise UserError(f"{folder}: no token store (no {STORE_MANIFEST}); run `dvc repro tokenize`") from None
        except ValidationError as error:
            raise UserError(
                f"{folder / STORE_MANIFEST}: damaged ({first_line(error)}); run `dvc repro -f tokenize`"
            ) from None
        for shard in self.manifest.shards:
            self._check_size(f"{shard.name}.tokens.bin", shard.tokens * np.dtype(self.manifest.dtype).itemsize)
            self._check_size(f"{shard.name}.offsets.bin", (shard.documents + 1) * 8)
        # The caches hold no reference to the store: a cycle would keep its files open after its last use.
        self._tokens = lru_cache(MAPPED_SHARDS)(partial(_map_tokens, folder, self.manifest))
        self._offsets = lru_cache(MAPPED_SHARDS)(partial(_map_offsets, folder, self.manifest))
        self._document_lines = lru_cache(1)(partial(_read_document_lines, folder, self.manifest))
        self._first_token = _starts([shard.tokens for shard in self.manifest.shards])
        self._first_document = _starts([shard.documents for shard in self.manifest.shards])

    def _check_size(self, name: str, size: int) -> None:
        path = self.folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise UserError(f"{path}: missing or not the size {STORE_MANIFEST} says; run `dvc repro -f tokenize`")

    def _all_offsets(self) -> Iterator[Positions]:
        return (np.fromfile(self.folder / f"{shard.name}.offsets.bin", "<i8") for shard in self.manifest.shards)

    def verify(self) -> None:
        """Compare every file with its sha256 in the manifest. Raises UserError that names the first that differs."""
        for shard in self.manifest.shards:
            for name, expected in shard.sha256.items():
                path = self.folder / name
                if not path.is_file() or file_sha256(path) != expected:
                    raise UserError(
                        f"{path}: its sha256 is not the one in {STORE_MANIFEST} (a damaged file); "
                        "run `dvc checkout`, or `dvc repro -f tokenize`"
                    )

    @cached_property
    def document_lengths(self) -> Positions:
        """Tokens of each document, its end-of-sequence id counted; shape (documents,)."""
        lengths = [np.diff(offsets) for offsets in self._all_offsets()]
        return np.concatenate(lengths) if lengths else np.empty(0, dtype=np.int64)

    @cached_property
    def document_starts(self) -> Positions:
        """Position of each document's first token; shape (documents,)."""
        starts = [offsets[:-1] + first for offsets, first in zip(self._all_offsets(), self._first_token, strict=False)]
        return np.concatenate(starts) if starts else np.empty(0, dtype=np.int64)

    def document(self, number: int) -> TokenIds:
        """The ids of one document, the end-of-sequence id last."""
        shard = int(np.searchsorted(self._first_document, number, side="right")) - 1
        within, first = number - int(self._first_document[shard]), int(self._first_token[shard])
        start, stop = self._offsets(shard)[within : within + 2].tolist()
        return self.read(first + start, first + stop)

    def read(self, start: int, stop: int) -> TokenIds:
        """The ids at positions start..stop, which may cross shards; shape (stop - start,)."""
        shard = int(np.searchsorted(self._first_token, start, side="right")) - 1
        found, done = np.empty(stop - start, dtype=self.manifest.dtype), 0
        while done < len(found):
            first = int(self._first_token[shard])
            part = self._tokens(shard)[start + done - first : stop - first]
            found[done : done + len(part)] = part
            done += len(part)
            shard += 1
        return found

    def starts_within(self, start: int, stop: int) -> Positions:
        """The positions start..stop at which documents begin."""
        parts = []
        for shard in self._shards_within(start, stop):
            first, offsets = int(self._first_token[shard]), self._offsets(shard)
            low, high = np.searchsorted(offsets[:-1], [start - first, stop - first]).tolist()
            parts.append(offsets[low:high] + first)
        return np.concatenate(parts)

    def documents_within(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (document, first, stop) of each document at positions start..stop: its tokens that are there."""
        for shard in self._shards_within(start, stop):
            first, offsets = int(self._first_token[shard]), self._offsets(shard)
            low, high = start - first, stop - first
            begins = max(0, int(np.searchsorted(offsets, low, side="right")) - 1)
            for document in range(begins, int(np.searchsorted(offsets[:-1], high))):
                begin, end = offsets[document : document + 2].tolist()
                yield int(self._first_document[shard]) + document, max(low - begin, 0), min(high, end) - begin

    def _shards_within(self, start: int, stop: int) -> range:
        first, last = (np.searchsorted(self._first_token, [start, stop - 1], side="right") - 1).tolist()
        return range(first, last + 1)

    def document_info(self, number: int) -> dict[str, Any]:
        """Where a document comes from: id, source, revision, path, license, bytes."""
        shard = int(np.searchsorted(self._first_document, number, side="right")) - 1
        info: dict[str, Any] = json.loads(self._document_lines(shard)[number - int(self._first_document[shard])])
        return info

    def document_infos(self) -> Iterator[dict[str, Any]]:
        """`document_info` of every document, in order."""
        for shard in self.manifest.shards:
            with (self.folder / f"{shard.name}.documents.jsonl").open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)


def _map_tokens(folder: Path, manifest: Manifest, shard: int) -> TokenIds:
    entry, dtype = manifest.shards[shard], np.dtype(manifest.dtype).newbyteorder("<")
    path = folder / f"{entry.name}.tokens.bin"
    return np.memmap(path, dtype, "r", shape=(entry.tokens,)) if entry.tokens else np.empty(0, dtype)


def _map_offsets(folder: Path, manifest: Manifest, shard: int) -> Positions:
    return np.asarray(np.memmap(folder / f"{manifest.shards[shard].name}.offsets.bin", "<i8", "r"))


def _read_document_lines(folder: Path, manifest: Manifest, shard: int) -> list[bytes]:
    return (folder / f"{manifest.shards[shard].name}.documents.jsonl").read_bytes().split(b"\n")


def _starts(counts: list[int]) -> Positions:
    """The starts of consecutive ranges, and the end of the last one: [3, 4] -> [0, 3, 7]."""
    return np.cumulative_sum(np.array(counts, dtype=np.int64), include_initial=True)
