"""The loss of a model on every token of a held-out set."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple, dataclass
from functools import cached_property, partial
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from stages.evaluate.likelihood.tokens import Tokens
from stages.evaluate.likelihood.windows import Window, WindowSizes, batches, document_windows, scored_per_position
from stages.evaluate.side_by_side import cores_each, cores_for, cores_of, map_side_by_side, twin
from stages.formats.plain_head import has_plain_head

Losses = npt.NDArray[np.float64]
"""Shape (batches, most_windows + buckets): of each batch, the nats of each window and of each bucket of positions.

Sums over batches are added later, in the order of the batches, so that they have the same bits however many processes
have shared the batches.
"""

ACTIVATIONS = 32
"""Of the model's width, for each position: the four of the MLP, several times, and those of attention."""

SHORT_WINDOWS = 8
"""A batch of short windows has at most this many times `batch_size` windows."""

NOT_SCORED = -100
"""The target id of a position whose loss is not asked for."""

ROWS_PER_WIDTH = {"cpu": 1, "cuda": 16}
"""Positions whose logits are computed at once, by the head's width. The logits of a whole batch are its largest tensor:
a part needs a small share of that memory, and no more time (2 cores, 16 windows of 256, 4,096 tokens in the vocabulary:
1.0 s in parts, 1.1 s whole, on a busy machine). With as many rows as the head is wide, reading the head again costs no
more than writing the logits. Not tried on a GPU.
"""


@dataclass(frozen=True)
class Plan:
    """Which windows of a set are scored together. Who scores a batch changes nothing, so batches can be shared."""

    tokens: Tokens
    sizes: WindowSizes
    batch_size: int
    """Windows that the model reads at once where they are as long as the context; of shorter ones it reads more."""

    @property
    def most_windows(self) -> int:
        """Of a batch."""
        return SHORT_WINDOWS * self.batch_size

    @cached_property
    def batches(self) -> list[list[Window]]:
        """Windows that the model reads at once."""
        return batches(self.windows(), self.batch_size * self.sizes.context_length, self.most_windows)

    def windows(self) -> Iterator[Window]:
        """Those of all documents."""
        lengths = enumerate(self.tokens.lengths.tolist())
        cut = (document_windows(number, length, *astuple(self.sizes)) for number, length in lengths)
        return chain.from_iterable(cut)

    def document_nats(self, losses: Losses) -> npt.NDArray[np.float64]:
        """The negative log-likelihood of each document in nats; shape (documents,)."""
        nats = np.zeros(len(self.tokens.lengths), dtype=np.float64)
        for batch, row in zip(self.batches, losses, strict=True):
            for window, loss in zip(batch, row.tolist(), strict=False):
                nats[window.document] += loss
        return nats

    def position_losses(self, losses: Losses) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Nats and number of the tokens that were scored in each bucket of positions; both of shape (buckets,)."""
        scored = scored_per_position(chain.from_iterable(self.batches), self.sizes.context_length)
        return losses[:, self.most_windows :].sum(axis=0), np.add.reduceat(scored, self.sizes.buckets)


def score_batches(
    model: PreTrainedModel, plan: Plan, rank: int = 0, processes: int = 1, description: str = "scoring"
) -> Losses:
    """The losses of every `processes`-th batch, from batch `rank` on; on a CPU each core scores batches of its own."""
    own = plan.batches[rank::processes]
    cores = cores_for(model, _bytes_in_use(model, plan))
    threads = max(1, min(cores_of(model) // cores, len(own)))
    work = [partial(_row, Scorer(one), plan) for one in (model, *(twin(model) for _ in range(threads - 1)))]
    with cores_each(cores), closing(map_side_by_side(work, own)) as rows:
        losses = list(track(rows, total=len(own), description=description, disable=rank > 0))
    return np.stack(losses) if losses else np.empty((0, plan.most_windows + len(plan.sizes.buckets)))


def score_documents(model: PreTrainedModel, plan: Plan) -> npt.NDArray[np.float64]:
    """The negative log-likelihood of each document in nats; shape (documents,).

    Depends on the batch size only by float32 rounding.
    """
    return plan.document_nats(score_batches(model, plan))


def _bytes_in_use(model: PreTrainedModel, plan: Plan) -> int:
    """About what scoring a batch holds at once: some activations, or the logits where they are not taken in parts."""
    config = model.config.get_text_config()
    width = ACTIVATIONS * int(config.hidden_size)
    if not has_plain_head(model):
        width = max(width, 3 * int(config.vocab_size))
    return 4 * plan.batch_size * plan.sizes.context_length * width


def _row(scorer: "Scorer", plan: Plan, batch: list[Window]) -> npt.NDArray[np.float64]:
    """A row of `Losses`."""
    losses = scorer.token_losses(plan.tokens, batch)
    context = min(window.context for window in batch)
    windows = np.zeros(plan.most_windows)
    windows[: len(batch)] = losses.sum(dim=1).cpu()
    positions = np.zeros(plan.sizes.context_length)
    positions[context : context + losses.shape[1]] = losses.sum(dim=0).cpu()
    return np.concatenate([windows, np.add.reduceat(positions, plan.sizes.buckets)])


class Scorer:
    """Reads windows with one model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.plain_head = has_plain_head(model)

    def window_nats(self, tokens: Tokens, batch: list[Window]) -> list[float]:
        """The summed negative log-likelihood of each window's scored positions."""
        sums: list[float] = self.token_losses(tokens, batch).sum(dim=1).tolist()
        return sums

    @torch.inference_mode()
    def token_losses(self, tokens: Tokens, batch: list[Window]) -> torch.Tensor:
        """The negative log-likelihood in nats of the positions from the shortest context on; 0 where none is scored.

        float64, shape (windows, positions).
        """
        longest = max(window.length for window in batch)
        context = min(window.context for window in batch)
        inputs = np.full((len(batch), longest), tokens.first_id, dtype=np.int64)
        targets = np.full((len(batch), longest), NOT_SCORED, dtype=np.int64)
        for row, window in enumerate(batch):
            read_window(tokens, window, inputs[row], targets[row])
        expected = torch.from_numpy(targets[:, context:])
        scored = (expected != NOT_SCORED).to(self.model.device)
        losses = torch.zeros(expected.shape, dtype=torch.float64, device=self.model.device)
        losses[scored] = self._losses(torch.from_numpy(inputs), expected, scored).double()
        return losses

    def _losses(self, inputs: torch.Tensor, expected: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
        """Those of the scored positions alone, in order; `expected` and `scored` are (windows, last positions)."""
        # Padding follows the text, where a causal model cannot attend to it: no mask is needed.
        inputs, expected = inputs.to(self.model.device), expected.to(self.model.device)[scored]
        kept = scored.shape[1]
        if not self.plain_head:
            logits = self.model(input_ids=inputs, logits_to_keep=kept, use_cache=False).logits[scored]
            return cross_entropy(logits.float(), expected, reduction="none")
        hidden = self.model.base_model(input_ids=inputs, use_cache=False)[0][:, -kept:][scored]
        head = self.model.get_output_embeddings()
        rows = ROWS_PER_WIDTH.get(hidden.device.type, 16) * hidden.shape[1]
        parts = zip(torch.split(hidden, rows), torch.split(expected, rows), strict=True)
        return torch.cat([cross_entropy(head(part).float(), ids, reduction="none") for part, ids in parts])


def read_window(tokens: Tokens, window: Window, inputs: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> None:
    """Fill a row: the input ids, and the target ids of the scored positions."""
    first = int(tokens.starts[window.document])
    read_from = max(window.start - 1, 0)
    ids = tokens.ids[first + read_from : first + window.stop]
    # Position p reads token p - 1 of the document; position 0 the id before it, which `inputs` already holds.
    skipped = 1 if window.start == 0 else 0
    inputs[skipped : window.length] = ids[:-1]
    targets[window.context : window.length] = ids[window.scored_from - read_from :]
