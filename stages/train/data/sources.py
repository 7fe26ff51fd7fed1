"""The rows of a mixture: the documents of each source packed apart, so that a row is of one source.

An index over the token store, which knows nothing of mixtures: neither a source nor a weight changes a token, and a
change of weights changes no index.
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from stages.formats.tokens import STORE_MANIFEST, TokenStore
from stages.runtime.atomic import file_sha256
from stages.runtime.cache import cache_key, cached
from stages.train.data.mixture import OTHERS, Mixture
from stages.train.data.packing import ARRAYS, KEPT_FROM_DOCUMENTS, Integers, PackingIndex, Strategy, pack

SOURCES = "sources.json"

CACHE_NAME = "mixture"
"""Of the indexes of large stores."""


@dataclass(frozen=True)
class SourceRows:
    """The rows of one source: `first_row` and those that follow it in the index of all of them."""

    name: str
    documents: int
    stored_tokens: int
    """In the token store."""
    first_row: int
    rows: int
    targets: int
    """Of all its rows together: what one pass over them trains on."""


@dataclass(frozen=True)
class MixedRows:
    """The rows of all sources of a mixture."""

    index: PackingIndex
    sources: tuple[SourceRows, ...]
    """As in `Mixture.sources`."""
    left_out: SourceRows
    """All other documents, without rows."""


def document_sources(store: TokenStore) -> tuple[list[str], Integers]:
    """The names of the sources in a store, sorted, and for each document the number of its own among them."""
    found: dict[str, int] = {}
    numbers = np.array([found.setdefault(info["source"], len(found)) for info in store.document_infos()], dtype=int)
    names = sorted(found)
    places = np.empty(len(found), dtype=np.int64)
    for place, name in enumerate(names):
        places[found[name]] = place
    return names, places[numbers]


def open_mixed_rows(store: TokenStore, sequence_length: int, strategy: Strategy, mixture: Mixture) -> MixedRows:
    """The rows of a mixture's sources; those of a large store are packed once on a machine, for any weights.

    A source that the store does not have has no documents here.
    """
    if store.manifest.documents < KEPT_FROM_DOCUMENTS:
        return pack_sources(store, sequence_length, strategy, mixture)
    names = json.dumps([mixture.sources, sorted(mixture.named)])
    key = cache_key(file_sha256(store.folder / STORE_MANIFEST), str(sequence_length), strategy, names)
    folder = cached(CACHE_NAME, key, partial(_write, store, sequence_length, strategy, mixture))
    index = PackingIndex(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS))
    *sources, left_out = (SourceRows(**source) for source in json.loads((folder / SOURCES).read_bytes()))
    return MixedRows(index, tuple(sources), left_out)


def _write(store: TokenStore, sequence_length: int, strategy: Strategy, mixture: Mixture, folder: Path) -> None:
    mixed = pack_sources(store, sequence_length, strategy, mixture)
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", getattr(mixed.index, name))
    (folder / SOURCES).write_text(json.dumps([vars(source) for source in (*mixed.sources, mixed.left_out)]))


def pack_sources(store: TokenStore, sequence_length: int, strategy: Strategy, mixture: Mixture) -> MixedRows:
    """Pack the documents of each source apart."""
    names, numbers = document_sources(store)
    of_group = {name: [place for place, known in enumerate(names) if known == name] for name in mixture.named}
    of_group[OTHERS] = [place for place, known in enumerate(names) if known not in mixture.named]
    indexes, sources, first_row = [], [], 0
    taken = np.zeros(len(numbers), dtype=np.bool_)
    for name in mixture.sources:
        own = np.isin(numbers, of_group[name])
        taken |= own
        lengths = store.document_lengths[own]
        index = pack(store.document_starts[own], lengths, sequence_length, strategy)
        targets = int(index.lengths.sum())
        sources.append(SourceRows(name, int(own.sum()), int(lengths.sum()), first_row, index.rows, targets))
        indexes.append(index)
        first_row += index.rows
    rest = ~taken
    left_out = SourceRows("", int(rest.sum()), int(store.document_lengths[rest].sum()), first_row, 0, 0)
    return MixedRows(joined(indexes), tuple(sources), left_out)


def joined(indexes: list[PackingIndex]) -> PackingIndex:
    """One index of the rows of several, in their order."""
    shifts = np.cumulative_sum([len(index.starts) for index in indexes], include_initial=True)
    offsets = [index.offsets[1:] + shift for index, shift in zip(indexes, shifts[:-1], strict=True)]
    return PackingIndex(
        starts=np.concatenate([index.starts for index in indexes]),
        lengths=np.concatenate([index.lengths for index in indexes]),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), *offsets]),
    )
