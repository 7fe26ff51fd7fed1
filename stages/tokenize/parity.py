"""The gate: fastokens encodes the corpus only if it gives the ids of `tokenizers` on a sample and on hard texts."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from stages.formats.documents import read_shard
from stages.runtime.cache import cache_key, cached
from stages.tokenize.encode import Engine, Fast, Reference

OBJECTION = "objection.txt"

HARD_TEXTS = (
    "",
    " ",
    "\n",
    "\t\t\n  \n",
    "\r\n\r\n \r",
    "a" * 5000,
    " " * 5000,
    "\n" * 999,
    "0123456789" * 100,
    "'s 't 're 've 'm 'll 'd 'S 'LL I'm we'll",
    "x=1;y  =   2\n\tif x:\n\t\treturn  y",
    "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|><|unknown|><pad></s>",
    "<|endoftext|",
    "\ufeffbyte-order mark",
    "\ufeff",
    "caf\u00e9 cafe\u0301 \u212b \u00c5 A\u030a",
    "\ufb01 \u017f \u1e9e \u00df \u0130 \u0131",
    "\u200b\u200c\u200d\u2060\u00ad",
    "\u00a0\u2003\u3000\u2028\u2029\u0085\u000b\u000c\u001c",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202e\u202d",
    "\u4f60\u597d\u4e16\u754c\uff0c\u3053\u3093\u306b\u3061\u306f\uc548\ub155",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f3fd\u200d\U0001f4bb \u2764\ufe0f \U0001f1e9\U0001f1ea",
    "\u0663\u0664 \u2167 \u00bd \u2075 \U0001d7d8",
    "z" + "\u0301" * 300,
    "\ufffd\ufffe\uffff \U0010ffff \U000e0001 \ue000",
    "\x00\x01\x02\x7f\x80\x9f",
    "".join(map(chr, range(1, 0x250))),
    "\U00010330\U00010400 \U0001d4d0 \U00020000",
)
"""Texts on which tokenizers have differed: white space, contractions, special tokens' names, combining marks, joined
emoji, right-to-left, digits of other scripts, private and unassigned code points, long runs."""


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
    """The name of the engine that encodes, with its version; says in one line why it is not the one wanted.

    The comparison is made once for each tokenizer and sample, and its outcome kept.
    """
    if wanted == "tokenizers":
        return Reference.name
    texts = [*HARD_TEXTS, *first_texts(shards, parity_bytes)]
    key = cache_key(Fast.name, Reference.name, tokenizer_json.read_text(encoding="utf-8"), *texts)
    entry = cached("parity", key, partial(_write_objection, tokenizer_json, texts))
    objection = (entry / OBJECTION).read_text(encoding="utf-8")
    if objection:
        print(f"{Fast.name} {objection}: encoding with {Reference.name}, slower", flush=True)
    return Reference.name if objection else Fast.name


def _write_objection(tokenizer_json: Path, texts: Sequence[str], folder: Path) -> None:
    """Write why the fast engine must not be used, or nothing."""
    try:
        difference = find_difference(Fast(tokenizer_json), Reference(tokenizer_json), texts)
        objection = "" if difference is None else f"differs on {difference[:60]!r}"
    except (RuntimeError, ValueError, NotImplementedError) as error:
        objection = f"cannot take this tokenizer ({error})"
    (folder / OBJECTION).write_text(objection, encoding="utf-8")
