"""Finds documents that contain a passage of an evaluation set: an n-gram of its words (Brown et al. 2020, app. C).

An item with fewer words than an n-gram is one passage, the sequence of all its words.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from stages.clean.masking import mask
from stages.clean.params import Decontamination
from stages.clean.words import word_list
from stages.formats.documents import read_shard
from stages.formats.rows import NO_VALUE, field_of, read_row_file
from stages.runtime.atomic import file_sha256, known_sha256
from stages.runtime.cache import cache_key, map_cached
from stages.runtime.errors import UserError

HITS = "hits.json"

SEARCHED = ("by_ngrams", "whole", "not_searched")
"""How an item is searched for."""

NGram = tuple[bytes, ...]


class Passages(NamedTuple):
    """The texts that are searched for."""

    item_of: dict[NGram, str]
    """Passage -> the first item that has it."""
    size: int
    """Words of an n-gram."""
    shorter: dict[bytes, tuple[int, ...]]
    """Last word of a passage of fewer words -> how many words such passages have."""


class Contamination(NamedTuple):
    """The matches, and the texts that were searched for."""

    because: dict[int, str]
    """Row of a contaminated document over all shards -> the first item that shares a passage, and the passage."""
    searched: Counter[str]
    """How many items documents were searched for: `by_ngrams`, as a `whole`, or `not_searched` for."""


def find_contaminated(shards: Sequence[Path], sets: Decontamination, masks: Sequence[str] = ()) -> Contamination:
    """Look for passages of the evaluation sets in every document; `masks` are the kinds of values masked there."""
    searched, passages = evaluation_passages(sets, masks)
    key = cache_key(sets.model_dump_json(), json.dumps(masks), *(file_sha256(Path(name)) for name in sets.files))
    because: dict[int, str] = {}
    first_row = 0
    find = partial(_find, passages)
    for entry in map_cached("contamination", shards, lambda shard: cache_key(key, known_sha256(shard)), find):
        found = json.loads((entry / HITS).read_text(encoding="utf-8"))
        because |= {first_row + row: f"{item}: {words}" for row, item, words in found["hits"]}
        first_row += found["documents"]
    return Contamination(because, searched)


def evaluation_passages(sets: Decontamination, masks: Sequence[str] = ()) -> tuple[Counter[str], Passages]:
    """How the items of the evaluation sets are searched for, and by what. Raises UserError if that is nothing."""
    searched: Counter[str] = Counter()
    item_of: dict[NGram, str] = {}
    shorter: dict[bytes, set[int]] = {}
    for file in sets.files:
        for name, text in evaluation_items(Path(file), sets.fields):
            words = passage_words(text)
            if len(words) < sets.minimum_words:
                searched["not_searched"] += 1
                continue
            searched["by_ngrams" if len(words) >= sets.ngram_size else "whole"] += 1
            # A copy in a document has placeholders where the item has addresses. What is masked depends on the text
            # around it too, so the item is searched for as it is as well.
            for form in (words, passage_words(mask(text, masks).text)) if masks else (words,):
                if (size := min(len(form), sets.ngram_size)) < sets.minimum_words:
                    continue
                for start in range(len(form) - size + 1):
                    item_of.setdefault(tuple(form[start : start + size]), name)
                if size < sets.ngram_size:
                    shorter.setdefault(form[-1], set()).add(size)
    if not item_of:
        raise UserError(f"clean.decontamination: no item of {', '.join(sets.files)} has {sets.minimum_words} words")
    return searched, Passages(item_of, sets.ngram_size, {word: tuple(sorted(sizes)) for word, sizes in shorter.items()})


def evaluation_items(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The name and the text of each item of an evaluation set. Raises UserError if it cannot be read."""
    for name, row in read_row_file(path):
        texts = (_text(field_of(row, field), f"clean.decontamination: {name}: field `{field}`") for field in fields)
        yield name, "\n".join(filter(None, texts))


def _text(value: Any, where: str) -> str:
    """A value as text; those of a list one a line, and nothing for null."""
    if value is NO_VALUE:
        raise UserError(f"{where} is missing")
    if isinstance(value, dict):
        raise UserError(f"{where} has subfields ({', '.join(value)}); name one of them after a dot")
    if isinstance(value, list):
        return "\n".join(text for one in value if (text := _text(one, where)))
    return "" if value is None else str(value)


def passage_words(text: str) -> list[bytes]:
    """The words of a text, the same for different spellings: lower case, ligatures as letters, no soft hyphens."""
    return word_list(unicodedata.normalize("NFKC", text.replace("\u00ad", "")).lower())


def _find(passages: Passages, shard: Path, folder: Path) -> None:
    known = {word for passage in passages.item_of for word in passage}
    texts = read_shard(shard, ["text"]).column("text").to_pylist()
    found = ((row, first_passage(passage_words(text), passages, known)) for row, text in enumerate(texts))
    hits = [(row, passages.item_of[words], b" ".join(words).decode()) for row, words in found if words is not None]
    (folder / HITS).write_text(json.dumps({"documents": len(texts), "hits": hits}), encoding="utf-8")


def first_passage(found: Sequence[bytes], passages: Passages, known: set[bytes]) -> NGram | None:
    """The first passage that an evaluation set has too."""
    known_in_a_row = 0  # a passage is looked up only if these are as many as it has words
    for end, word in enumerate(found, start=1):
        known_in_a_row = known_in_a_row + 1 if word in known else 0
        for size in (passages.size, *passages.shorter.get(word, ())):
            if known_in_a_row >= size:
                passage = tuple(found[end - size : end])
                if passage in passages.item_of:
                    return passage
    return None
