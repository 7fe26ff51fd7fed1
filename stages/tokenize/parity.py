"""The gate: fastokens encodes the corpus only if it gives the ids of `tokenizers` on a sample."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from stages.formats.documents import read_shard
from stages.runtime.entry import UserError
from stages.tokenize.encode import Engine, Fast, Reference


def find_difference(fast: Engine, reference: Engine, texts: Sequence[str]) -> str | None:
    """The first text that the two encode differently, or None."""
    ids, lengths = fast.encode(texts)
    expected_ids, expected_lengths = reference.encode(texts)
    if np.array_equal(lengths, expected_lengths) and np.array_equal(ids, expected_ids):
        return None
    alone = (text for text in texts if not np.array_equal(fast.encode([text])[0], reference.encode([text])[0]))
    return next(alone, texts[0])


def first_texts(shards: Sequence[Path], limit: int) -> Iterator[str]:
    """Texts from the first shards, up to `limit` bytes; ids are hashes, so this is a uniform sample."""
    texts = itertools.chain.from_iterable(read_shard(path, ["text"]).column("text").to_pylist() for path in shards)
    for text in texts:
        limit -= len(text.encode("utf-8"))
        if limit < 0:
            return
        yield text


def choose_engine(wanted: str, tokenizer_json: Path, shards: Sequence[Path], parity_bytes: int) -> str:
    """The name of the engine that encodes, with its version. Raises UserError if it does not give the ids of
    `tokenizers` on a sample of the documents."""
    if wanted == "tokenizers":
        return Reference.name
    texts = list(first_texts(shards, parity_bytes))
    try:
        difference = find_difference(Fast(tokenizer_json), Reference(tokenizer_json), texts)
        objection = "" if difference is None else f"differs on {difference[:60]!r}"
    except (RuntimeError, ValueError, NotImplementedError) as error:
        objection = f"cannot take this tokenizer ({error})"
    if objection:
        raise UserError(f"tokenize: {Fast.name} {objection}: set tokenize.engine: tokenizers in params.yaml (slower)")
    return Fast.name
