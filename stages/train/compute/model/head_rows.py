"""Training with a part of the output matrix (`train.head_rows`), whose product is most of a small model's compute.

The softmax of a sequence is over the rows of its own targets and N other rows, which a step draws for all of its
sequences. Each drawn row is weighted by 1 / (its probability of being drawn), so the softmax's sum over the vocabulary
is unbiased: importance sampling (Bengio and Senecal 2008, "Adaptive Importance Sampling to Accelerate Training of a
Neural Probabilistic Language Model"; Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine
Translation"). The loss depends on the sequence, the seed and the step, not on micro-batches or processes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from stages.formats.tokens import TokenStore
from stages.train.compute.params import ComputingParams

Probabilities = npt.NDArray[np.float64]

SPANS, SPAN_TOKENS = 1024, 16_384
"""In a larger store, tokens are counted in `SPANS` spans of `SPAN_TOKENS` tokens, spread evenly over it."""


class DrawnRows(NamedTuple):
    """Distinct rows of the output matrix."""

    ids: Tensor
    """(drawn,), int64."""
    log_probabilities: Tensor
    """(drawn,): the log of each row's probability of being drawn."""


@dataclass(frozen=True)
class HeadRows:
    """Draws rows of the output matrix."""

    seed: int
    probabilities: Probabilities
    """One per row of the output matrix; their sum is the number of rows drawn."""

    def draw(self, step: int, device: torch.device) -> DrawnRows:
        """The rows that `step` (from 0) draws: systematic sampling of all rows in random order."""
        random = np.random.default_rng([self.seed, step, int.from_bytes(b"head")])
        order = random.permutation(len(self.probabilities))
        ends = np.cumsum(self.probabilities[order])
        ids = order[np.searchsorted(ends[:-1], np.arange(round(ends[-1])) + random.random(), side="right")]
        drawn = torch.from_numpy(ids), torch.from_numpy(np.log(self.probabilities[ids])).float()
        if device.type == "cuda":  # copies from other memory would wait for the GPU's queue
            drawn = drawn[0].pin_memory(), drawn[1].pin_memory()
        return DrawnRows(*(tensor.to(device, non_blocking=True) for tensor in drawn))


def head_rows(params: ComputingParams, store: TokenStore, vocabulary: int) -> HeadRows | None:
    """The sampler for an output matrix of `vocabulary` rows; None if the run uses all rows."""
    if (count := params.head_rows) is None or count >= vocabulary:
        return None
    return HeadRows(params.seed, probabilities(token_counts(store, vocabulary), count))


def token_counts(store: TokenStore, vocabulary: int) -> npt.NDArray[np.int64]:
    """How often each id occurs in the store, or in spans of a large one."""
    tokens = store.manifest.tokens
    each, starts = tokens, [0]
    if tokens > SPANS * SPAN_TOKENS:
        each, starts = SPAN_TOKENS, np.linspace(0, tokens - SPAN_TOKENS, SPANS).astype(int).tolist()
    counts = np.zeros(vocabulary, dtype=np.int64)
    for start in starts:
        counts += np.bincount(store.read(start, start + each), minlength=vocabulary)
    return counts


def probabilities(counts: npt.NDArray[np.int64], drawn: int) -> Probabilities:
    """The probability of drawing each row, proportional to the square root of its frequency and at most 1.

    They sum to `drawn`. The root of a row's mean squared probability in the model would minimize the variance of the
    softmax's sum.
    """
    sizes = np.sqrt(counts + 1.0)
    order = np.argsort(-sizes, kind="stable")
    rest = np.cumsum(sizes[order][::-1])[::-1]  # the size of each row and of all that are smaller
    certain = int(np.argmax(np.append(sizes[order] * (drawn - np.arange(len(sizes))) < rest, True)))
    found = np.ones(len(sizes))
    found[order[certain:]] = sizes[order[certain:]] * (drawn - certain) / sizes[order[certain:]].sum()
    return found


def sampled_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, drawn: DrawnRows, dtype: torch.dtype
) -> Tensor:
    """The cross-entropy over the rows of each sequence's own targets and the drawn rows, summed, in nats.

    `hidden` is (sequences, tokens, width), `weight` (vocabulary, width), `targets` (sequences, tokens); products are
    taken in `dtype`.
    """
    # An embedding lookup sums its gradient in a fixed order on every device; indexing does not.
    own, others = (functional.embedding(ids, weight).to(dtype) for ids in (targets, drawn.ids))
    rows = torch.cat([own, others.expand(len(own), -1, -1)], 1)
    labels = (targets[:, :, None] == targets[:, None, :]).byte().argmax(-1)  # the first position with the same id
    is_repeated = labels < torch.arange(targets.shape[1], device=targets.device)
    is_own = (targets[:, :, None] == drawn.ids).any(1)
    weights = torch.where(is_own, -torch.inf, -drawn.log_probabilities)
    biases = torch.cat([torch.where(is_repeated, -torch.inf, 0.0), weights], 1)
    logits = (hidden.to(dtype) @ rows.mT).float() + biases[:, None]
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
