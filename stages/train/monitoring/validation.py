"""Measures the held-out loss while a model trains: of all held-out documents, and of each of their sources."""

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

DRAW_KEY = (0, 0)
"""By which the held-out sequences are drawn."""

MIN_SEQUENCES, MAX_SOURCES = 4, 12
"""A held-out source gets a curve if at least `MIN_SEQUENCES` of the drawn sequences contain only its text. If more than
`MAX_SOURCES` sources do, those with the most sequences get one."""


@dataclass(frozen=True)
class ValidationResult:
    """A measurement on held-out sequences."""

    loss: float
    """Nats per token."""
    bits_per_byte: float
    """The loss by the bytes of the documents that were scored: comparable between tokenizers."""
    by_source: dict[str, float]
    """Bits per byte of the held-out sources that have a curve of their own; empty if there is only one source."""


@dataclass(frozen=True)
class Chunk:
    """Held-out sequences that the model reads at once."""

    source: str
    """Whose text they are; "" if it has no curve of its own."""
    rows: Integers
    bytes: float


class Validation:
    """Measures a model on `evaluation_sequences` held-out sequences, the same at every step and for every seed.

    `model` is called as `CausalLoss` is, and returns the summed loss first.
    """

    def __init__(
        self, params: TrainParams, accelerator: Accelerator, store: TokenStore, model: nn.Module, rows_at_once: int
    ) -> None:
        self.accelerator = accelerator
        self.store = store
        self.model = model
        self.sequence_length = params.sequence_length
        self.index = pack_rows(store, params.sequence_length)
        drawn = permutation(DRAW_KEY, self.index.rows)[: params.evaluation_sequences].astype(np.int64)
        self.chunks = [*chunks(store, self.index, np.sort(drawn).tolist(), rows_at_once)]

    @torch.no_grad()
    def measure(self) -> ValidationResult:
        """Token-weighted loss over the drawn sequences. Every process calls this and scores every world_size-th chunk.

        The sums of the chunks are added in their order, so the result does not depend on the number of processes.
        """
        self.model.eval()
        processes, last = self.accelerator.num_processes, len(self.chunks) - 1
        nats = torch.zeros(len(self.chunks), dtype=torch.float64)
        for first in range(0, len(self.chunks), processes):
            number = first + self.accelerator.process_index
            # A sharded model needs all processes in each forward pass: those without a chunk repeat the last.
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
        """Of the chunks of a source, or of all; `sums` are the nats of each chunk."""
        scored = [pair for pair in zip(sums, self.chunks, strict=True) if source in (None, pair[1].source)]
        return math.fsum(nats for nats, _ in scored) / math.log(2) / math.fsum(chunk.bytes for _, chunk in scored)

    def _sum(self, rows: Integers) -> float:
        batch = read_rows(self.store, self.index, rows, self.sequence_length)
        arrays = (batch.inputs, batch.targets, batch.positions)
        return float(self.model(*(torch.from_numpy(array).to(self.accelerator.device) for array in arrays))[0].item())


def chunks(store: TokenStore, index: ConsecutiveRows, rows: Sequence[int], rows_at_once: int) -> Iterator[Chunk]:
    """Rows, which are in order, in chunks whose rows are of one source, or of sources without a curve of their own."""
    found = {row: source_and_bytes(store, index, row) for row in rows}
    counts = Counter(source for source, _ in found.values() if source)
    shown = {source for source, count in counts.most_common(MAX_SOURCES) if count >= MIN_SEQUENCES}
    by_source: dict[str, list[int]] = {}
    for row, (source, _) in found.items():
        by_source.setdefault(source if source in shown else "", []).append(row)
    for source, own in by_source.items():
        for part in (own[first : first + rows_at_once] for first in range(0, len(own), rows_at_once)):
            yield Chunk(source, np.array(part), math.fsum(found[row][1] for row in part))


def source_and_bytes(store: TokenStore, index: ConsecutiveRows, row: int) -> tuple[str, float]:
    """The source of a row's text, "" if there are several; and the UTF-8 bytes of the text.

    A document that the row cuts counts by its share of the document's tokens.
    """
    sources, size = set(), 0.0
    for start, length in index.spans(row):
        for document, first, stop in store.documents_within(start, start + length):
            info = store.document_info(document)
            sources.add(str(info["source"]))
            size += float(info["bytes"]) * (stop - first) / int(store.document_lengths[document])
    return sources.pop() if len(sources) == 1 else "", size
