"""The loss on held-out sequences during training: the same ones each time, divided among the processes."""

import math
from dataclasses import dataclass

import torch
from accelerate import Accelerator

from stages.formats.tokens import TokenStore
from stages.train.data.batches import Integers, pack, read_rows
from stages.train.data.order import epoch_order
from stages.train.model.loss import CausalLoss
from stages.train.params import TrainParams


@dataclass(frozen=True)
class ValidationResult:
    """A measurement on held-out sequences."""

    loss: float
    """Nats per token."""
    bits_per_byte: float
    """The loss by the store's bytes per token: comparable between tokenizers."""


class Validation:
    """Measures a model on `evaluation_sequences` held-out sequences, drawn once by the seed."""

    def __init__(
        self, params: TrainParams, accelerator: Accelerator, store: TokenStore, model: CausalLoss, rows_at_once: int
    ) -> None:
        self.accelerator = accelerator
        self.store = store
        self.model = model
        self.sequence_length = params.sequence_length
        self.index = pack(store, params.sequence_length)
        drawn = epoch_order(params.seed, 0, self.index.rows)[: params.evaluation_sequences]
        self.chunks = [drawn[first : first + rows_at_once] for first in range(0, len(drawn), rows_at_once)]

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
            sum_of_chunk = self._sum(self.chunks[min(number, last)])
            if number <= last:
                nats[number] = sum_of_chunk
        self.model.train()
        tokens = sum(map(len, self.chunks)) * self.sequence_length
        total = self.accelerator.reduce(nats.to(self.accelerator.device), "sum").cpu()
        loss = math.fsum(total.tolist()) / tokens
        manifest = self.store.manifest
        return ValidationResult(loss, loss / math.log(2) * manifest.tokens / manifest.bytes)

    def _sum(self, rows: Integers) -> float:
        batch = read_rows(self.store, self.index, rows, self.sequence_length)
        arrays = (batch.inputs, batch.targets, batch.positions)
        return float(self.model(*(torch.from_numpy(array).to(self.accelerator.device) for array in arrays))[0].item())
