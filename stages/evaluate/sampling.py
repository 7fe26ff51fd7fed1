"""How a token is drawn from a row's logits, and how likely it was.

A row's token depends on its own logits and its own random number alone, to the last bit: softmax treats each row by
itself, and the sums over a row are taken in order. So it does not matter which rows are drawn together.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from stages.evaluate.bootstrap import Floats
from stages.runtime.entry import UserError

CANDIDATES = 256
"""How many of the most likely tokens are summed at first. Only rows where they do not reach top_p sum all tokens."""

COLDEST = 1e-6
"""Of temperatures below it the logits' quotients would exceed float32; they take the most likely token, as 0 does."""


def draw(logits: torch.Tensor, temperature: float, top_p: float, uniforms: Floats) -> list[int]:
    """One token id for each row; logits (rows, vocabulary), uniforms (rows,) in [0, 1).

    The most likely token at temperature 0. Raises UserError where the logits are no numbers.
    """
    if not torch.isfinite(logits.amax(dim=-1)).all():
        raise UserError("the model's output is no number (NaN or infinite): its training has diverged")
    if temperature < COLDEST:
        most_likely: list[int] = logits.argmax(dim=-1).tolist()
        return most_likely
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    if top_p == 1:
        cumulative = np.cumsum(probabilities.cpu().numpy(), axis=1, dtype=np.float64)
        tokens: list[int] = _index(cumulative, cumulative[:, -1], uniforms).tolist()
        return tokens
    likely = _on_host if probabilities.device.type == "cpu" else _on_device
    return _from_nucleus(probabilities, top_p, uniforms, CANDIDATES, likely)


def _from_nucleus(
    probabilities: torch.Tensor, top_p: float, uniforms: Floats, candidates: int, most_likely: "MostLikely"
) -> list[int]:
    likely = most_likely(probabilities, candidates)
    rows = np.arange(len(likely))
    cumulative = np.cumsum(likely, axis=1, dtype=np.float64)
    # The smallest set of most likely tokens whose probability reaches top_p: at least one.
    last = np.minimum((cumulative < top_p).sum(axis=1), likely.shape[1] - 1)
    total = cumulative[rows, last]
    index = _index(cumulative, total, uniforms)
    drawn = likely[rows, index]
    are_drawn = probabilities == torch.from_numpy(drawn).to(probabilities.device)[:, None]
    tokens: list[int] = are_drawn.byte().argmax(dim=1).tolist()
    # Of several equally likely tokens the one of the drawn rank, in the order of their ids.
    rank = index - (likely > drawn[:, None]).sum(axis=1)
    for row in np.flatnonzero(rank):
        tokens[row] = int(are_drawn[row].nonzero()[rank[row], 0])
    everything = probabilities.shape[1]
    for row in np.flatnonzero(total < top_p) if candidates < everything else ():
        one = slice(row, row + 1)
        tokens[row] = _from_nucleus(probabilities[one], top_p, uniforms[one], everything, most_likely)[0]
    return tokens


MostLikely: TypeAlias = Callable[[torch.Tensor, int], npt.NDArray[np.float32]]
"""So many of the highest probabilities of each row, descending. Their ids are not sorted: one of each row is needed."""


def _on_host(probabilities: torch.Tensor, number: int) -> npt.NDArray[np.float32]:
    """`MostLikely` for a CPU, where a partition is faster than a sort."""
    least = max(0, probabilities.shape[1] - number)
    every = probabilities.numpy()
    chosen = np.partition(every, least, axis=1)[:, least:] if least else every
    return np.sort(chosen, axis=1)[:, ::-1]


def _on_device(probabilities: torch.Tensor, number: int) -> npt.NDArray[np.float32]:
    """`MostLikely` for a GPU, which sends these alone to the host."""
    found: npt.NDArray[np.float32] = probabilities.topk(min(number, probabilities.shape[1]), dim=1).values.cpu().numpy()
    return found


def _index(cumulative: Floats, total: Floats, uniforms: Floats) -> npt.NDArray[np.int64]:
    """For each row the first index whose cumulative probability exceeds its uniform number's share of the total."""
    # Rounding may give the total itself, which no index exceeds.
    share = np.minimum(uniforms * total, np.nextafter(total, 0))
    index: npt.NDArray[np.int64] = (cumulative <= share[:, None]).sum(axis=1)
    return index


DECIMALS = 3
"""Of a log-probability. Further ones are float32's rounding in all but the likeliest tokens."""


def log_probabilities(logits: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    """The natural logarithm of each row's token's probability, rounded; logits (rows, vocabulary).

    Under the model itself, at temperature 1 and over all tokens, also where it was drawn otherwise.
    """
    drawn = torch.tensor(tokens, device=logits.device)[:, None]
    own = torch.log_softmax(logits.float(), dim=-1).gather(1, drawn)[:, 0]
    return [round(value, DECIMALS) + 0.0 for value in own.tolist()]  # + 0.0: no -0.0
