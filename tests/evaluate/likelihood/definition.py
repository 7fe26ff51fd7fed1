"""The definition of the likelihood: no batches, no padding, no shared windows."""

from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel


def one_token_at_a_time(
    model: PreTrainedModel, read: Sequence[int], context_length: int, stride: int, masked: int = 0
) -> Iterator[tuple[int, float]]:
    """The nats of each token after the first `masked`, under its own context; `read` begins and ends with the closing
    id. Before them: how many tokens of the token's window come before what the model reads last."""
    for position in range(masked, len(read) - 1):
        start = stride * max(0, -(-(position + 1 - context_length) // stride))
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([read[start : position + 1]])).logits[0, -1]
        yield position - start, -float(torch.log_softmax(logits.double(), -1)[read[position + 1]])
