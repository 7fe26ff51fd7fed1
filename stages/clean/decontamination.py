"""Finds documents that contain a passage of an evaluation set: an n-gram of its words (Brown et al. 2020, app. C)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stages.clean.words import WordKind, word_list
from stages.formats.documents import read_shard
from stages.formats.reports import parse_json
from stages.runtime.cache import cache_key, map_cached, shard_sha256
from stages.runtime.entry import UserError
from stages.runtime.hashes import file_sha256

HITS = "hits.json"

NGram = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """One document with a passage of an evaluation item."""

    row: int
    """Of the document, over all shards."""
    item: str
    """File and number of the item."""
    ngram: str
    """The words that they share."""


def find_contaminated(
    shards: Sequence[Path], files: Sequence[str], fields: Sequence[str], size: int, kind: WordKind
) -> list[Hit]:
    """The first hit of each document that has one, in the order of the documents.

    Looks for n-grams of `size` words of the evaluation sets in `files`; `fields` make up the text of a .jsonl item.
    """
    ngrams = evaluation_ngrams(files, fields, size, kind)
    key = cache_key(json.dumps([files, fields, size, kind]), *(file_sha256(Path(name)) for name in files))
    hits = []
    first_row = 0
    find = partial(_find, ngrams, size, kind)
    for entry in map_cached("contamination", shards, lambda shard: cache_key(key, shard_sha256(shard)), find):
        found = json.loads((entry / HITS).read_text(encoding="utf-8"))
        hits += [Hit(first_row + row, item, ngram) for row, item, ngram in found["hits"]]
        first_row += found["documents"]
    return hits


def evaluation_ngrams(files: Sequence[str], fields: Sequence[str], size: int, kind: WordKind) -> dict[NGram, str]:
    """Every n-gram of the evaluation sets, with the first item that has it."""
    ngrams: dict[NGram, str] = {}
    for name in files:
        for number, text in enumerate(evaluation_texts(Path(name), fields), start=1):
            found = word_list(text.lower(), kind)
            for start in range(len(found) - size + 1):
                ngrams.setdefault(tuple(found[start : start + size]), f"{name}#{number}")
    if not ngrams:
        raise UserError(f"clean.decontamination: no item of {', '.join(files)} has {size} words")
    return ngrams


def evaluation_texts(path: Path, fields: Sequence[str]) -> list[str]:
    """The items of an evaluation set: lines of JSON, or one text. Raises UserError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".jsonl":
            return [text]
        lines = enumerate(text.split("\n"), start=1)
        return [_item(path, number, line, fields) for number, line in lines if line.strip()]
    except OSError as error:
        raise UserError(f"clean.decontamination: {path} cannot be read ({error.strerror}); correct its path") from None
    except UnicodeError as error:
        raise UserError(f"clean.decontamination: {path} is not UTF-8 ({error})") from None


def _item(path: Path, number: int, line: str, fields: Sequence[str]) -> str:
    try:
        row = parse_json(line)
        return "\n".join(str(row[field]) for field in fields)
    except KeyError as error:
        raise UserError(f"clean.decontamination: {path}: line {number} has no field {error}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"clean.decontamination: {path}: line {number} is not a JSON object ({error})") from None


def _find(ngrams: dict[NGram, str], size: int, kind: WordKind, shard: Path, folder: Path) -> None:
    known = {word for ngram in ngrams for word in ngram}
    texts = read_shard(shard, ["text"]).column("text").to_pylist()
    found = ((row, first_ngram(word_list(text.lower(), kind), ngrams, known, size)) for row, text in enumerate(texts))
    hits = [(row, ngrams[ngram], b" ".join(ngram).decode()) for row, ngram in found if ngram is not None]
    (folder / HITS).write_text(json.dumps({"documents": len(texts), "hits": hits}), encoding="utf-8")


def first_ngram(found: Sequence[bytes], ngrams: dict[NGram, str], known: set[bytes], size: int) -> NGram | None:
    """The first n-gram that an evaluation set has too. Only where `size` known words follow each other is one
    looked up."""
    known_in_a_row = 0
    for end, word in enumerate(found, start=1):
        known_in_a_row = known_in_a_row + 1 if word in known else 0
        if known_in_a_row >= size:
            ngram = tuple(found[end - size : end])
            if ngram in ngrams:
                return ngram
    return None
