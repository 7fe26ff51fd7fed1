"""The loss of a model on every token of a token store."""

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from stages.evaluate.likelihood.windows import Window, batches, document_windows
from stages.formats.tokens import TokenStore


def score_documents(
    model: PreTrainedModel, store: TokenStore, context_length: int, stride: int, batch_size: int
) -> npt.NDArray[np.float64]:
    """The negative log-likelihood of each document in nats; shape (documents,).

    Depends on `batch_size` only by float32 rounding.
    """
    lengths = store.document_lengths.tolist()
    plan = itertools.chain.from_iterable(
        document_windows(number, length, context_length, stride) for number, length in enumerate(lengths)
    )
    nats = np.zeros(len(lengths), dtype=np.float64)
    for batch in track(batches(plan, batch_size), description="scoring"):
        losses = score_batch(model, store, batch)
        for window, loss in zip(batch, losses, strict=True):
            nats[window.document] += loss
    return nats


@torch.inference_mode()
def score_batch(model: PreTrainedModel, store: TokenStore, batch: list[Window]) -> Iterable[float]:
    """The summed negative log-likelihood of each window's scored positions, in nats."""
    longest = max(window.length for window in batch)
    context = min(window.context for window in batch)
    inputs = np.full((len(batch), longest), store.manifest.eos_id, dtype=np.int64)
    targets = np.full((len(batch), longest), -100, dtype=np.int64)
    for row, window in enumerate(batch):
        read_window(store, window, inputs[row], targets[row])
    # Padding follows the text, where a causal model cannot attend to it: no mask is needed. Logits of positions that
    # no window scores are not computed.
    logits = model(
        input_ids=torch.from_numpy(inputs).to(model.device), logits_to_keep=longest - context, use_cache=False
    ).logits
    expected = torch.from_numpy(targets[:, context:]).to(model.device)
    losses = cross_entropy(logits.float().flatten(0, 1), expected.flatten(), reduction="none", ignore_index=-100)
    sums: list[float] = losses.view(expected.shape).double().sum(dim=1).tolist()
    return sums


def read_window(
    store: TokenStore, window: Window, inputs: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
) -> None:
    """Fill a row: the input ids, and the target ids of the scored positions."""
    first = int(store.document_starts[window.document])
    read_from = max(window.start - 1, 0)
    tokens = store.read(first + read_from, first + window.stop)
    # Position p reads token p - 1 of the document; position 0 the end-of-sequence id, which `inputs` already holds.
    skipped = 1 if window.start == 0 else 0
    inputs[skipped : window.length] = tokens[:-1]
    targets[window.context : window.length] = tokens[window.scored_from - read_from :]
