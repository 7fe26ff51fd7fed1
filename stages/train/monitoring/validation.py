"""Measures the held-out loss during training, overall and by source."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from stages.formats.tokens import TokenStore
from stages.train.compute.data.rows import ConsecutiveRows, Integers, pack_rows, permutation, read_rows
from stages.train.params import TrainParams

MIN_SEQUENCES, MAX_SOURCES = 4, 12
"""A held-out source gets a curve if at least `MIN_SEQUENCES` of the drawn sequences contain only its text. If more than
`MAX_SOURCES` sources do, those with the most sequences get one."""


@dataclass(frozen=True)
class ValidationResult:
    """A measurement on held-out sequences."""

    loss: float
    """Nats per token."""
    bits_per_byte: float
    """Comparable between tokenizers."""
    by_source: dict[str, float]
    """Bits per byte of each source that has a curve; empty if there is only one source."""


@dataclass(frozen=True)
class Chunk:
    """Held-out sequences of one forward pass."""

    source: str
    """Their source; "" if it has no curve."""
    rows: Integers
    bytes: float


class Validation:
    """Measures a model on `evaluation_sequences` held-out sequences, the same at every step and for every seed.

    `model` has the signature of `CausalLoss.forward`.
    """

    def __init__(
        self, params: TrainParams, accelerator: Accelerator, store: TokenStore, model: nn.Module, rows_at_once: int
    ) -> None:
        self.accelerator = accelerator
        self.store = store
        self.model = model
        self.sequence_length = params.sequence_length
        self.index = pack_rows(store, params.sequence_length)
        drawn = permutation((0, 0), self.index.rows)[: params.evaluation_sequences].astype(np.int64)
        self.chunks = [*chunks(store, self.index, np.sort(drawn).tolist(), rows_at_once)]

    @torch.no_grad()
    def measure(self) -> ValidationResult:
        """Measure the model. Every process calls this and scores every world_size-th chunk.

        The chunks' sums are added in a fixed order, so the result does not depend on the number of processes.
        """
        self.model.eval()
        processes, last = self.accelerator.num_processes, len(self.chunks) - 1
        nats = torch.zeros(len(self.chunks), dtype=torch.float64)
        for first in range(0, len(self.chunks), processes):
            number = first + self.accelerator.process_index
            # A sharded model needs all processes in each forward pass, so those without a chunk repeat the last.
            sum_of_chunk = self._sum(self.chunks[min(number, last)].rows)
            if number <= last:
                nats[number] = sum_of_chunk
        self.model.train()
        sums: list[float] = self.accelerator.reduce(nats.to(self.accelerator.device), "sum").tolist()
        tokens = sum(len(chunk.rows) for chunk in self.chunks) * self.sequence_length
        sources = dict.fromkeys(chunk.source for chunk in self.chunks)
        by_source = {source: self._bits_per_byte(sums, source) for source in sources if source and len(sources) > 1}
        return ValidationResult(math.fsum(sums) / tokens, self._bits_per_byte(sums), by_source)

    def _bits_per_byte(self, sums: list[float], source: str | None = None) -> float:
        """Bits per byte of a source or of all chunks; `sums` are the nats of each chunk."""
        scored = [pair for pair in zip(sums, self.chunks, strict=True) if source in (None, pair[1].source)]
        return math.fsum(nats for nats, _ in scored) / math.log(2) / math.fsum(chunk.bytes for _, chunk in scored)

    def _sum(self, rows: Integers) -> float:
        batch = read_rows(self.store, self.index, rows, self.sequence_length)
        arrays = (batch.inputs, batch.targets, batch.positions)
        return float(self.model(*(torch.from_numpy(array).to(self.accelerator.device) for array in arrays))[0].item())


def chunks(store: TokenStore, index: ConsecutiveRows, rows: Sequence[int], rows_at_once: int) -> Iterator[Chunk]:
    """Yield sorted rows in chunks; the rows of a chunk are from one source, or from sources that have no curve."""
    facts = {row: source_and_bytes(store, index, row) for row in rows}
    counts = Counter(source for source, _ in facts.values() if source)
    shown = {source for source, count in counts.most_common(MAX_SOURCES) if count >= MIN_SEQUENCES}
    by_source: dict[str, list[int]] = {}
    for row, (source, _) in facts.items():
        by_source.setdefault(source if source in shown else "", []).append(row)
    for source, of_source in by_source.items():
        for first in range(0, len(of_source), rows_at_once):
            part = of_source[first : first + rows_at_once]
            yield Chunk(source, np.array(part), math.fsum(facts[row][1] for row in part))


def source_and_bytes(store: TokenStore, index: ConsecutiveRows, row: int) -> tuple[str, float]:
    """The source of a row ("" if there are several) and its UTF-8 bytes.

    If a row holds a part of a document, that part's share of the tokens gives its share of the bytes.
    """
    sources, size = set(), 0.0
    for start, length in index.spans(row):
        for document, first, stop in store.documents_within(start, start + length):
            info = store.document_info(document)
            sources.add(str(info["source"]))
            size += float(info["bytes"]) * (stop - first) / int(store.document_lengths[document])
    return sources.pop() if len(sources) == 1 else "", size
