"""A linear classifier of documents, trained on documents that people have labelled as good or bad.

Logistic regression over hashed words and pairs of neighbouring words, as fastText's classifiers are (Joulin et al.
2017), with the features of a document scaled to length 1 (as in Pedregosa et al. 2011). The sums are made in one
thread and in a fixed order, so the same documents give the same file.
"""

import io
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from stages.clean.words import word_list
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import InputsChangedError, UserError

BITS = 18
"""Weights: 2 to this power. Words that share one are not told apart."""

PENALTY = 1e-4
"""Of the squared weights, for each document: larger ones generalise from fewer documents and tell less apart."""

STEPS = 300
"""Of accelerated gradient descent (Nesterov 1983); more change no digit that is kept."""

DIGITS = 4
"""Of a score after the point: its last bits differ between processors."""

WORD_MIX, PAIR_MIX = np.uint32(0x9E3779B1), np.uint32(0x85EBCA6B)

Labelled = Sequence[tuple[str, bool]]
"""Texts, each with whether it is a good one."""

HashedWeights = npt.NDArray[np.float32]


class Classifier(NamedTuple):
    """What a training gives: a weight for each of 2 ** BITS buckets, and a bias."""

    weights: HashedWeights
    bias: float

    def score(self, text: str) -> float:
        """The probability that a document is a good one, if good and bad ones are equally many. 0 without words."""
        found, values = features_of(text)
        if not len(found):
            return 0.0
        total = self.bias + float(np.sum(self.weights[found] * values, dtype=np.float64))
        return round(float(sigmoid(np.float64(total))), DIGITS)

    def content(self) -> bytes:
        """As it is in its file."""
        stream = io.BytesIO()
        np.savez_compressed(stream, weights=self.weights.astype(np.float16), bias=np.float64(self.bias))
        return stream.getvalue()


def features_of(text: str) -> tuple[npt.NDArray[np.int64], HashedWeights]:
    """The buckets of a document's words and pairs of words, sorted, and how much each counts: log(1 + n) for one that
    is there n times, scaled so that the squares sum to 1."""
    words = word_list(text.lower(), "unicode")
    hashed = np.fromiter(map(crc32, words), dtype=np.uint32, count=len(words))
    pairs = (hashed[:-1] * PAIR_MIX) ^ hashed[1:]
    buckets = (np.concatenate([hashed, pairs]) * WORD_MIX) >> np.uint32(32 - BITS)
    found, counts = np.unique(buckets, return_counts=True)
    values = np.log1p(counts)
    return found.astype(np.int64), (values / np.sqrt(np.sum(values**2))).astype(np.float32)


def train(documents: Labelled) -> Classifier:
    """Fit a classifier. Both kinds of documents count alike in all, however many there are of each."""
    rows = [features_of(text) for text, _ in documents]
    offsets = np.cumsum([0, *(len(found) for found, _ in rows)])
    values = np.concatenate([value for _, value in rows]).astype(np.float64)
    indices = np.concatenate([found for found, _ in rows])
    matrix = csr_array((values, indices, offsets), shape=(len(rows), 1 << BITS))
    transposed = matrix.T.tocsr()
    labels = np.array([good for _, good in documents], dtype=np.float64)
    share = np.where(labels == 1, 0.5 / max(labels.sum(), 1), 0.5 / max((1 - labels).sum(), 1))
    weights = ahead = np.zeros(1 << BITS)
    bias = bias_ahead = 0.0
    rate, momentum = 1 / (0.5 + PENALTY), 1.0  # half of the largest curvature: of unit features and a bias of 1
    for _ in range(STEPS):
        error = (sigmoid(matrix @ ahead + bias_ahead) - labels) * share
        new = ahead - rate * (transposed @ error + PENALTY * ahead)
        new_bias = bias_ahead - rate * float(np.sum(error))
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        pull = (momentum - 1) / following
        ahead, bias_ahead = new + pull * (new - weights), new_bias + pull * (new_bias - bias)
        weights, bias, momentum = new, new_bias, following
    return Classifier(weights.astype(np.float16).astype(np.float32), bias)


def sigmoid(value: Any) -> Any:
    """The logistic function, without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * value))


@lru_cache(maxsize=2)
def read_classifier(path: Path, sha256: str) -> Classifier:
    """The classifier of a file with that sha256. Raises InputsChangedError where the file has another one by now,
    UserError where it is no classifier."""
    if file_sha256(path) != sha256:
        raise InputsChangedError(f"{path} changed while it was used: run the same command again")
    try:
        with np.load(path, allow_pickle=False) as file:
            weights, bias = file["weights"], float(file["bias"])
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: no classifier of `parrotflow data quality` ({error})") from None
    if weights.shape != (1 << BITS,) or weights.dtype != np.float16:
        raise UserError(f"{path}: a classifier of another version: train it again with `parrotflow data quality`")
    return Classifier(weights.astype(np.float32), bias)


def area_under_curve(scores: Sequence[float], good: Sequence[bool]) -> float:
    """How often a good document scores above a bad one; ties count half."""
    ordered, labels = np.array(scores), np.array(good, dtype=bool)
    worse, better = np.sort(ordered[~labels]), ordered[labels]
    wins = np.searchsorted(worse, better, "left") + np.searchsorted(worse, better, "right")
    return float(wins.sum() / (2 * len(worse) * len(better)))
