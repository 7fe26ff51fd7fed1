"""Encodes shards of documents into shards of tokens, each once: what was encoded before is taken from the cache.

By fastokens, if it gives the ids of tokenizers, the reference, on a sample of each shard; or by tokenizers. The name of
a special token in a document is text too: it is encoded letter by letter.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import fastokens
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from stages.formats.documents import read_shard, text_size
from stages.formats.model_folder import TOKENIZER_CONFIG, TOKENIZER_JSON
from stages.formats.reports import read_json
from stages.formats.tokens import STORE_MANIFEST, Dtype, Manifest, Positions, ShardEntry
from stages.runtime.atomic import file_sha256, known_sha256
from stages.runtime.cache import cache_key, hash_in_workers, map_cached
from stages.runtime.errors import UserError

FlatIds = npt.NDArray[np.uint32]

ENTRY = "entry.json"

PARITY_TEXTS, PARITY_CHARACTERS = 20, 10_000
"""How many of a shard's texts both engines encode to compare their ids, and how much of each. The order is that of
hashes, so the first ones are a uniform sample."""

THREADS_EACH = 4
"""Both engines encode a batch with threads of their own; about this many are busy in each process."""


class Reference:
    """The library `tokenizers`, which defines what is right."""

    name = f"tokenizers {version('tokenizers')}"
    """With its version, as the report says it."""

    def __init__(self, tokenizer_json: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_json))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: Sequence[str]) -> tuple[FlatIds, Positions]:
        """All ids one text after the other, and the number of ids of each text; shapes (ids,) and (texts,)."""
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
        """As `Reference.encode`."""
        ids, ends = self._tokenizer.encode_batch_flat(list(texts), add_special_tokens=False, split_special_tokens=True)
        offsets = np.frombuffer(ends, dtype="<u8").astype(np.int64)
        return np.frombuffer(ids, dtype="<u4"), offsets[1:] - offsets[:-1]


Engine: TypeAlias = Reference | Fast


def find_difference(fast: Engine, reference: Engine, texts: Sequence[str]) -> str | None:
    """The first text that the two encode differently, or None."""
    ids, lengths = fast.encode(texts)
    expected_ids, expected_lengths = reference.encode(texts)
    if np.array_equal(lengths, expected_lengths) and np.array_equal(ids, expected_ids):
        return None
    alone = (text for text in texts if not np.array_equal(fast.encode([text])[0], reference.encode([text])[0]))
    return next(alone, texts[0])


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The facts of a tokenizer that a token store depends on."""

    tokenizer_json: Path
    sha256: str
    """The sha256 of `tokenizer.json`."""
    size: int
    """One more than the highest id."""
    eos_id: int
    special_ids: frozenset[int]
    """Ids that no text may become: all special tokens but the one for unknown text."""


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read a tokenizer's folder. Raises UserError if it holds no tokenizer, or one without an end-of-sequence token."""
    tokenizer_json = folder / TOKENIZER_JSON
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_json))
        config = read_json(folder / TOKENIZER_CONFIG)
    except Exception as error:  # the library raises bare ones
        raise UserError(f"{folder}: no tokenizer ({error}); run `dvc repro tokenizer`") from None
    eos_id = tokenizer.token_to_id(_content(config.get("eos_token")))
    if eos_id is None:
        raise UserError(f"{folder}: {TOKENIZER_CONFIG} has no eos_token of the vocabulary to close each document with")
    unknown = _content(config.get("unk_token"))
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return Vocabulary(
        tokenizer_json=tokenizer_json,
        sha256=file_sha256(tokenizer_json),
        size=max(tokenizer.get_vocab().values()) + 1,
        eos_id=eos_id,
        special_ids=frozenset(special - {tokenizer.token_to_id(unknown)}),
    )


def _content(token: str | dict[str, str] | None) -> str:
    return token.get("content", "") if isinstance(token, dict) else token or ""


@lru_cache(maxsize=2)
def _opened(kind: type[Engine], vocabulary: Vocabulary) -> Engine:
    """The engine, opened once in a process: fastokens takes 0.2 s for it."""
    return kind(vocabulary.tokenizer_json)


def require_parity(vocabulary: Vocabulary, texts: Sequence[str]) -> None:
    """Raise UserError if `Fast` does not give the ids of `Reference` on a sample of a shard's texts."""
    sample = [text[:PARITY_CHARACTERS] for text in texts[:PARITY_TEXTS]]
    try:
        difference = find_difference(_opened(Fast, vocabulary), _opened(Reference, vocabulary), sample)
        objection = "" if difference is None else f"differs on {difference[:60]!r}"
    except (RuntimeError, ValueError, NotImplementedError) as error:
        objection = f"does not support this tokenizer ({error})"
    if objection:
        raise UserError(f"tokenize: {Fast.name} {objection}: set tokenize.engine: tokenizers in params.yaml (slower)")


def write_store(shards: Sequence[Path], vocabulary: Vocabulary, engine: str, folder: Path) -> Manifest:
    """Write the token store of a split into an existing folder, a shard for a shard; `engine` is the name of one."""
    entries = []
    hash_in_workers(shards)
    facts = (vocabulary.sha256, str(vocabulary.eos_id), engine)

    def key_of(shard: Path) -> str:
        return cache_key(*facts, shard.stem, known_sha256(shard))

    caches = map_cached("tokens", shards, key_of, partial(encode_shard, vocabulary, engine), THREADS_EACH)
    for cache in caches:
        entries.append(ShardEntry(**json.loads((cache / ENTRY).read_text(encoding="utf-8"))))
        for name in entries[-1].sha256:
            shutil.copyfile(cache / name, folder / name)
    manifest = Manifest(
        dtype=smallest_dtype(vocabulary.size),
        vocab_size=vocabulary.size,
        eos_id=vocabulary.eos_id,
        tokenizer_sha256=vocabulary.sha256,
        # Without its version: a release that gives the same ids leaves the store as it was.
        engine=engine.partition(" ")[0],
        shards=tuple(entries),
    )
    (folder / STORE_MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def encode_shard(vocabulary: Vocabulary, engine: str, shard: Path, folder: Path) -> None:
    """Write one shard's three files and its entry for the manifest.

    Raises UserError if a text became a special token, or as `require_parity`.
    """
    table = read_shard(shard)
    texts = table.column("text").to_pylist()
    if engine == Fast.name:
        require_parity(vocabulary, texts)
    ids, lengths = _opened(Fast if engine == Fast.name else Reference, vocabulary).encode(texts)
    if np.isin(ids, list(vocabulary.special_ids)).any():
        raise UserError(
            f"{shard}: {engine} encoded text as a special token, because this tokenizer does not tell "
            "them apart, so documents could end in the middle: choose another one"
        )
    infos = [
        row | {"bytes": text_size(text)}
        for row, text in zip(table.drop_columns("text").to_pylist(), texts, strict=True)
    ]
    dtype = smallest_dtype(vocabulary.size)
    entry = write_token_shard(folder, shard.stem, ids, lengths, infos, vocabulary.eos_id, dtype)
    (folder / ENTRY).write_text(json.dumps(asdict(entry), sort_keys=True), encoding="utf-8")


def smallest_dtype(vocab_size: int) -> Dtype:
    """The narrowest type that holds every id of a vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def write_token_shard(
    folder: Path,
    name: str,
    ids: FlatIds,
    lengths: Positions,
    infos: Sequence[dict[str, Any]],
    eos_id: int,
    dtype: Dtype,
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
