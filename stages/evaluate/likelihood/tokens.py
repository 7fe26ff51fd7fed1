"""The documents of a held-out set as token ids of one model's tokenizer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerFast

from stages.formats.tokens import Positions, TokenIds, TokenStore

DOCUMENTS_AT_ONCE = 1000


@dataclass(frozen=True)
class Tokens:
    """Documents one after the other, each closed by its end-of-sequence id."""

    ids: TokenIds
    """Shape (tokens,)."""
    lengths: Positions
    """Tokens of each document, its closing id counted; shape (documents,)."""
    first_id: int
    """What the model reads before a document."""

    @cached_property
    def starts(self) -> Positions:
        """Position of each document's first token; shape (documents,)."""
        return np.cumsum(self.lengths) - self.lengths


def stored_tokens(store: TokenStore) -> Tokens:
    """The documents of a token store."""
    return Tokens(store.read(0, store.manifest.tokens), store.document_lengths, store.manifest.eos_id)


def encode(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast, first_id: int) -> Tokens:
    """Texts in the order given."""
    eos = tokenizer.eos_token_id
    documents = [np.array([*ids, eos], dtype=np.uint32) for ids in _encoded(texts, tokenizer)]
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    return Tokens(np.concatenate(documents), lengths, first_id)


def _encoded(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[int]]:
    engine = tokenizer.backend_tokenizer
    engine.no_truncation()  # a tokenizer.json may turn it on
    engine.no_padding()
    parts = iter(texts)
    while part := list(islice(parts, DOCUMENTS_AT_ONCE)):
        yield from (encoding.ids for encoding in engine.encode_batch(part, add_special_tokens=False))
