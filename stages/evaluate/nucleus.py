"""Draws one token for each of several rows: nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751).

A row's token depends on its own logits and its own random number alone, to the last bit: softmax and topk treat each
row by itself, and the sums over a row are taken in order. So it does not matter which rows are drawn together.
"""

import numpy as np
import numpy.typing as npt
import torch

CANDIDATES = 256
"""Tokens that are sorted at first. Where they do not reach top_p, all are: the same result, and more time."""


def draw(logits: torch.Tensor, temperature: float, top_p: float, uniforms: npt.NDArray[np.float64]) -> list[int]:
    """One token id for each row; logits (rows, vocabulary), uniforms (rows,) in [0, 1).

    The most likely token at temperature 0.
    """
    if temperature == 0:
        most_likely: list[int] = logits.argmax(dim=-1).tolist()
        return most_likely
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    if top_p == 1:
        return _at(np.cumsum(probabilities.cpu().numpy(), axis=1, dtype=np.float64), uniforms)
    return _from_nucleus(probabilities, top_p, uniforms, CANDIDATES)


def _from_nucleus(
    probabilities: torch.Tensor, top_p: float, uniforms: npt.NDArray[np.float64], candidates: int
) -> list[int]:
    candidates = min(candidates, probabilities.shape[1])
    values, ids = torch.topk(probabilities, candidates, dim=-1)
    cumulative = np.cumsum(values.cpu().numpy(), axis=1, dtype=np.float64)
    # The smallest set of most likely tokens whose probability reaches top_p: at least one.
    cumulative[:, 1:][cumulative[:, :-1] >= top_p] = np.inf
    kept = np.isfinite(cumulative).sum(axis=1)
    nucleus = cumulative[np.arange(len(cumulative)), kept - 1]
    tokens: list[int] = ids.cpu().numpy()[np.arange(len(ids)), _at(cumulative, uniforms, nucleus)].tolist()
    for row in np.flatnonzero(nucleus < top_p) if candidates < probabilities.shape[1] else ():
        tokens[row] = _from_nucleus(probabilities[row : row + 1], top_p, uniforms[row : row + 1], 1 << 62)[0]
    return tokens


def _at(
    cumulative: npt.NDArray[np.float64],
    uniforms: npt.NDArray[np.float64],
    total: npt.NDArray[np.float64] | None = None,
) -> list[int]:
    """For each row the first index whose cumulative probability exceeds its uniform number's share of the total."""
    total = cumulative[:, -1] if total is None else total
    # Rounding may give the total itself, which no index exceeds: then it is the last one with a probability.
    share = np.minimum(uniforms * total, np.nextafter(total, 0))
    index: list[int] = (cumulative <= share[:, None]).sum(axis=1).tolist()
    return index
