"""The loss on held-out sequences during training: the same ones each time, shared out over the processes."""

import math
from dataclasses import dataclass

import torch
from accelerate import Accelerator

from stages.formats.tokens import TokenStore
from stages.train.batches import epoch_order, read_rows
from stages.train.loss import CausalLoss
from stages.train.packing import build_packing
from stages.train.params import TrainParams


@dataclass(frozen=True)
class HeldOut:
    """A measurement on held-out sequences."""

    loss: float
    """Nats per token."""
    bits_per_byte: float
    """The loss by the store's bytes per token: comparable between tokenizers."""


class Evaluation:
    """Measures a model on `evaluation_sequences` held-out sequences, drawn once by the seed."""

    def __init__(
        self, params: TrainParams, accelerator: Accelerator, store: TokenStore, model: CausalLoss, rows_at_once: int
    ) -> None:
        self.accelerator = accelerator
        self.store = store
        self.model = model
        self.rows_at_once = rows_at_once
        self.sequence_length = params.sequence_length
        self.index = build_packing(store, params.sequence_length, params.packing)
        drawn = epoch_order(params.seed, 0, self.index.rows)[: params.evaluation_sequences]
        self.rows = drawn[accelerator.process_index :: accelerator.num_processes]

    @torch.no_grad()
    def measure(self) -> HeldOut:
        """Token-weighted loss over the drawn sequences of all processes."""
        self.model.eval()
        total = torch.zeros(2, dtype=torch.float64)
        for first in range(0, len(self.rows), self.rows_at_once):
            rows = self.rows[first : first + self.rows_at_once]
            batch = read_rows(self.store, self.index, rows, self.sequence_length)
            inputs = torch.from_numpy(batch.inputs).to(self.accelerator.device)
            targets = torch.from_numpy(batch.targets).to(self.accelerator.device)
            total += torch.tensor([self.model(inputs, targets).item(), batch.target_count], dtype=torch.float64)
        self.model.train()
        nats, tokens = self.accelerator.reduce(total.to(self.accelerator.device), "sum").tolist()
        loss = nats / tokens
        manifest = self.store.manifest
        return HeldOut(loss, loss / math.log(2) * manifest.tokens / manifest.bytes)
