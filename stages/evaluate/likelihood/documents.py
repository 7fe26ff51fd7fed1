"""The held-out documents: as text, as token ids, and as windows, which define the context of each scored token.

A document of n tokens (including its closing end-of-sequence id) is read as [eos, token 1, ..., token n - 1], and each
of its n positions predicts the next token. The first window scores all its positions. Each later window begins `stride`
positions later and scores the positions that no earlier one has scored. 10 positions, context 4, stride 3:

    position   0 1 2 3 4 5 6 7 8 9
    window 1   S S S S
    window 2         c S S S            S is scored, c is context only
    window 3               c S S S
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, repeat, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerFast

from stages.formats.documents import Document, document_id, read_documents, require_documents, text_size
from stages.formats.opening import EMPTY, NOT_UTF8, ROWS, check_text, ending, opened_file, text_reader, to_utf8
from stages.formats.rows import numbered_rows
from stages.formats.tokens import VALIDATION, Positions, TokenIds
from stages.runtime.errors import UserError

BATCH_ROWS = 1000
"""Documents in memory at once."""


@dataclass(frozen=True)
class HeldOutSet:
    """Documents to score models on."""

    name: str
    path: Path
    read: Callable[[], Iterator[Document]]
    """Streams the documents, always in the same order."""
    prompts: Sequence[str] = ()
    """The beginning of each document, which is not scored; empty: everything is scored."""

    @property
    def texts(self) -> Iterator[str]:
        """The text of each document."""
        return (document.text for document in self.read())

    def require_text(self) -> None:
        """Raise UserError if there are no documents."""
        if self.facts.empty:
            raise UserError(f"{self.path}: has no text; add documents, or remove `{self.name}` from evaluate.sets")

    @cached_property
    def facts(self) -> pd.DataFrame:
        """One row per document: `id` (sha256 of the text), `source`, `path`, scored `bytes` in UTF-8."""
        documents = zip(self.read(), chain(self.prompts, repeat("")), strict=False)
        rows = [(text.id, text.source, text.path, text.size - text_size(prompt)) for text, prompt in documents]
        return pd.DataFrame(rows, columns=["id", "source", "path", "bytes"])

    @property
    def sha256(self) -> str:
        """Identifies the texts and their order: the sha256 of the documents' ids, one per line."""
        return hashlib.sha256("".join(f"{name}\n" for name in self.facts["id"]).encode()).hexdigest()


def validation_split(folder: Path) -> HeldOutSet:
    """The documents that `clean` held out."""
    require_documents(folder)
    return HeldOutSet(VALIDATION, folder, lambda: read_documents(folder))


def named_set(name: str, path: Path) -> HeldOutSet:
    """A file, or all files of a folder in the order of their paths, except names that begin with a dot.

    In files of rows each row is a document, with the text in `text` and optional `source` and `path`; any other file is
    one document. As in `collect`, texts of only white space are skipped, and byte-order marks removed.
    """
    return HeldOutSet(name, path, lambda: _read(name, path))


def _read(set_name: str, path: Path) -> Iterator[Document]:
    for file in _files(path):
        name = file.relative_to(path).as_posix() if path.is_dir() else file.name
        name = os.fsencode(name).decode("utf-8", errors="replace")
        for mark, row in _rows(file):
            if document := _document(row, set_name, name + mark, f"{file}{mark}"):
                yield document


def _rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a file, each with its `#NUMBER`; a text file is one row without a number."""
    with opened_file(file) as stream:
        if ending(file.name) in ROWS:
            rows = numbered_rows(str(file), stream, ("text", "source", "path"))
            yield from ((f"#{number}", row or {}) for number, row in rows)
        else:
            yield "", {"text": text_reader(str(file), stream).read()}


def _document(row: Mapping[str, Any], set_name: str, name: str, where: str) -> Document | None:
    """A row as a document; None if its text is only white space. Raises UserError if the text is missing or invalid."""
    content = row.get("text")
    if not isinstance(content, str | bytes):
        cause = f"that is {type(content).__name__}" if "text" in row else f"it has {', '.join(sorted(map(str, row)))}"
        raise UserError(f"{where}: no text in a field `text`; {cause}")
    text, flaw = check_text(content)
    source, path = (str(row.get(field) or default) for field, default in (("source", set_name), ("path", name)))
    if flaw == EMPTY:
        return None
    if flaw := flaw or check_text(source + path)[1]:
        remedy = f": try `{to_utf8(content)}`" if flaw == NOT_UTF8 and isinstance(content, bytes) else ""
        raise UserError(f"{where}: {flaw}{remedy}")
    return Document(document_id(text), source, "", path, "", text)


def _files(path: Path) -> Iterable[Path]:
    if path.is_file():
        return [path]
    files = (file for file in path.rglob("*") if file.is_file())
    return sorted(f for f in files if not any(part.startswith(".") for part in f.relative_to(path).parts))


@dataclass(frozen=True)
class Tokens:
    """Concatenated documents, each closed by an end-of-sequence id."""

    ids: TokenIds
    """Shape (tokens,)."""
    lengths: Positions
    """Tokens of each document, including its closing id; shape (documents,)."""
    first_id: int
    """The id that the model reads before a document."""
    prompts: Positions | int = 0
    """Tokens at the beginning of each document that are not scored; shape (documents,)."""

    @property
    def scored(self) -> Positions:
        """Scored tokens of each document; shape (documents,)."""
        return self.lengths - self.prompts

    @cached_property
    def starts(self) -> Positions:
        """Position of each document's first token; shape (documents,)."""
        return np.cumsum(self.lengths) - self.lengths


def encoded(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerFast, first_id: int, prompts: Sequence[str] = ()
) -> Tokens:
    """Encode texts. The longest common prefix of a text's and its prompt's tokens is not scored."""
    eos = tokenizer.eos_token_id
    documents = [np.array([*ids, eos], dtype=np.uint32) for ids in _ids_of(texts, tokenizer)]
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    pairs = zip(documents, _ids_of(prompts, tokenizer), strict=False)
    shared = [len([*takewhile(bool, (a == b for a, b in zip(text, prompt, strict=False)))]) for text, prompt in pairs]
    return Tokens(np.concatenate(documents), lengths, first_id, np.array(shared, np.int64) if prompts else 0)


ROUND_TRIP_BYTES = 1_000_000
"""How much text is decoded again: enough to detect a lossy tokenizer, in less than a second."""


def lost_share(texts: Iterable[str], tokens: Tokens, tokenizer: PreTrainedTokenizerFast) -> float:
    """The share of the documents in the first megabyte that change when encoded and decoded.

    A tokenizer that lowercases, drops accents or has an unknown token encodes less, so it needs fewer bits.
    """
    read = documents = lost = 0
    for text, start, length in zip(texts, tokens.starts, tokens.lengths, strict=True):
        if read >= ROUND_TRIP_BYTES:
            break
        ids = tokens.ids[start : start + length - 1].tolist()
        lost += tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False) != text
        read, documents = read + len(text.encode("utf-8")), documents + 1
    return round(lost / documents, 4) if documents else 0.0


def _ids_of(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[int]]:
    engine = tokenizer.backend_tokenizer
    engine.no_truncation()  # a tokenizer.json may turn it on
    engine.no_padding()
    parts = iter(texts)
    while part := list(islice(parts, BATCH_ROWS)):
        yield from (encoding.ids for encoding in engine.encode_batch(part, add_special_tokens=False))


SHORT_WINDOWS = 8
"""A batch of short windows has at most `batch_size` times this many."""

POSITION_BUCKETS = 64
"""The maximum number of points in the curve of loss by position."""


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """How documents are cut into windows, in tokens."""

    context_length: int
    stride: int
    """Tokens by which a window advances."""

    @property
    def buckets(self) -> Positions:
        """The first position of each bucket, evenly spaced; shape (buckets,)."""
        count = min(POSITION_BUCKETS, self.context_length)
        return np.arange(count, dtype=np.int64) * self.context_length // count


@dataclass(frozen=True, slots=True)
class Window:
    """Positions start..stop of one document; positions from `scored_from` are scored."""

    document: int
    start: int
    scored_from: int
    stop: int

    @property
    def length(self) -> int:
        """Tokens that the model reads."""
        return self.stop - self.start

    @property
    def context(self) -> int:
        """Tokens at the window's beginning that are read but not scored."""
        return self.scored_from - self.start


def document_windows(document: int, length: int, context_length: int, stride: int, prompt: int = 0) -> Iterator[Window]:
    """Yield windows that score each of a document's `length` positions once, except the first `prompt`.

    From the second window on, each scored token has at least `context_length - stride` tokens of context.
    """
    scored = prompt
    start = 0
    while scored < length:
        stop = min(start + context_length, length)
        if scored < stop:
            yield Window(document, start, scored, stop)
            scored = stop
        start += stride


def batches(windows: Iterable[Window], tokens: int, most: int) -> list[list[Window]]:
    """Group windows of similar length and context, to minimize padding.

    A batch has at most `tokens` tokens, including padding, and at most `most` windows, but at least one. The longest
    windows come first, so that a lack of memory shows at once. The order depends only on the windows.
    """
    grouped: list[list[Window]] = []
    for window in sorted(windows, key=lambda window: (-window.length, window.context, window.document, window.start)):
        if not grouped or len(grouped[-1]) == most or (len(grouped[-1]) + 1) * grouped[-1][0].length > tokens:
            grouped.append([])
        grouped[-1].append(window)
    return grouped


@dataclass(frozen=True)
class ScoringPlan:
    """Which windows of a set are scored together."""

    tokens: Tokens
    sizes: WindowSizes
    batch_size: int
    """Windows per batch if they are as long as the context; batches of shorter windows have more."""

    @cached_property
    def batches(self) -> list[list[Window]]:
        """The windows of each batch."""
        return batches(self.windows(), self.batch_size * self.sizes.context_length, SHORT_WINDOWS * self.batch_size)

    def windows(self) -> Iterator[Window]:
        """The windows of all documents."""
        lengths = zip(self.tokens.lengths.tolist(), (self.tokens.lengths - self.tokens.scored).tolist(), strict=True)
        context, stride = self.sizes.context_length, self.sizes.stride
        cut = (document_windows(row, total, context, stride, prompt) for row, (total, prompt) in enumerate(lengths))
        return chain.from_iterable(cut)


def scored_per_bucket(plan: ScoringPlan) -> Positions:
    """Count the scored tokens of each bucket of positions; shape (buckets,)."""
    changes = np.zeros(plan.sizes.context_length + 1, dtype=np.int64)
    for window in plan.windows():
        changes[window.context] += 1
        changes[window.length] -= 1
    return np.add.reduceat(np.cumsum(changes)[:-1], plan.sizes.buckets)
