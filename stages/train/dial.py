"""The dial, `parrotflow params compute=`: for some compute the size with the fewest bits per byte, and its recipe.

A law predicts the bits per byte that a model of some size reaches with some compute. A model's size is its operations
per token, so it does not depend on rows of the embedding that are only looked up. The coefficients are the fit `valley`
of `experiments/dial.yaml`. `parrotflow sweep dial` runs that experiment again, and a test compares the two. Fixed rules
derive shape, batch, steps, warm-up and rates from the size. docs/how-to/training.md says what was measured.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

DECAY_EPOCHS = 15.4
"""Epochs after which a repeated token is worth 1/e of a new one: R*_D of Muennighoff et al. 2023, "Scaling
Data-Constrained Language Models", section 5, fitted to models of 7 million to 9 billion parameters; not measured here.
"""


BEYOND = 0.5
"""The power of compute by which the best size grows outside of what was measured: Hoffmann et al. 2022, "Training
Compute-Optimal Large Language Models", table 2, approaches 1 and 2. The fit's own exponent is lower, from few runs of a
few hundred steps; far away it would choose models that are much too small."""


@dataclass(frozen=True)
class Law:
    """log bits per byte = k0 + k1 u + k2 v + k3 v^2 + k4 u v + k5 u^2: u is log TFLOP, v log MFLOP per token.

    At each compute a parabola over the size, as `experiments/dial.py` fits it. Outside of the compute that
    was measured its bottom continues with the slope that it has at the edge, at a size that grows as compute^`BEYOND`.
    """

    coefficients: tuple[float, float, float, float, float, float]
    measured_tflop: tuple[float, float]
    """Least and most compute of the runs behind it."""

    def bits_per_byte(self, flops_per_token: float, flops: float, corpus_tokens: float | None = None) -> float:
        """Expected of a model trained for `flops` on a corpus of `corpus_tokens`; None: no token is repeated.

        A token that is repeated counts for less, and so does the compute that is spent on it: the bottom is that of
        less compute. The best size stays that of all compute, so that a larger model, which repeats less, gains.
        """
        worth = effective_tokens(flops / flops_per_token, corpus_tokens) * flops_per_token / 1e12
        off = math.log(flops_per_token / self.best_flops_per_token(flops))
        return math.exp(self._bottom(math.log(worth)) + self.coefficients[3] * off**2)

    def best_flops_per_token(self, flops: float) -> float:
        """With the fewest bits per byte, if no token is repeated."""
        _, _, k2, k3, k4, _ = self.coefficients
        u = math.log(flops / 1e12)
        edge = self._measured(u)
        return 1e6 * math.exp(-(k2 + k4 * edge) / (2 * k3) + BEYOND * (u - edge))

    def covers(self, flops: float) -> bool:
        """True if compute lies within the measured range, or at most 1 % outside."""
        low, high = self.measured_tflop
        return 0.99 * low <= flops / 1e12 <= 1.01 * high

    def _bottom(self, u: float) -> float:
        """The lowest log bits per byte at log TFLOP."""
        k0, k1, k2, k3, k4, k5 = self.coefficients
        edge = self._measured(u)
        slope = k1 + 2 * k5 * edge - k4 * (k2 + k4 * edge) / (2 * k3)
        return k0 + k1 * edge + k5 * edge**2 - (k2 + k4 * edge) ** 2 / (4 * k3) + slope * (u - edge)

    def _measured(self, u: float) -> float:
        """The nearest log TFLOP that was measured."""
        low, high = map(math.log, self.measured_tflop)
        return min(max(u, low), high)


def effective_tokens(tokens: float, corpus_tokens: float | None) -> float:
    """How many different tokens are worth as much: all of the first epoch, of each later one a smaller share.

    U + U R (1 - exp(-(epochs - 1) / R)), equation 5 of Muennighoff et al. 2023, for U tokens and R = `DECAY_EPOCHS`.
    """
    if corpus_tokens is None or tokens <= corpus_tokens:
        return tokens
    repeats = tokens / corpus_tokens - 1
    return corpus_tokens * (1 + DECAY_EPOCHS * -math.expm1(-repeats / DECAY_EPOCHS))


LAW = Law(
    coefficients=(0.373619789, -0.0892653276, 0.0334267009, 0.0449480619, -0.031421479, 0.0044087652),
    measured_tflop=(0.5, 12.0),
)
"""Fitted to models of the dial's shapes on rows of 256 tokens of Python code, with a vocabulary of 32,768 and 512 drawn
rows of the output matrix."""

MIN_STEPS = 20
"""Fewer are no training: rates are warmed up and brought down within them."""

MAX_WIDTH = 16_384


REFERENCE_WIDTH, REFERENCE_TOKENS, REFERENCE_BATCH_TOKENS = 64, 4.608e6, 2048
MUON_LEARNING_RATE, ADAMW_LEARNING_RATE = 0.006, 0.016
"""The reference run, from which batch and rates follow: the default recipe (docs/explanation/recipe.md)."""

BATCH_EXPONENT = 0.383
"""The batch grows as tokens to this power: nanochat, dev/LOG.md of 2026-02-05, after Bergsma et al. 2025,
"Power Lines"."""

WARMUP_SHARE = 0.02
"""Share of the steps: 45 of the reference's 2,250."""


def widths() -> Iterator[int]:
    """Multiples of 32 up to 256, then of 64 up to 1,024, then of 128, up to `MAX_WIDTH`."""
    width = 0
    while width < MAX_WIDTH:
        width += 32 if width < 256 else 64 if width < 1024 else 128
        yield width


def model_of(width: int, sequence_length: int) -> dict[str, Any]:
    """A Qwen3: 2 + width / 64 layers, heads of 32 (of 64 from width 512 on), 5/2 of the width inside.

    The embedding is not the output matrix too: it is only looked up, which costs no operations.
    """
    head = 32 if width < 512 else 64
    return {
        "model_type": "qwen3",
        "hidden_size": width,
        "intermediate_size": 5 * width // 2,
        "num_hidden_layers": 2 + width // 64,
        "num_attention_heads": width // head,
        "num_key_value_heads": width // head,
        "head_dim": head,
        "max_position_embeddings": sequence_length,
        "tie_word_embeddings": False,
    }


@dataclass(frozen=True)
class Counted:
    """A model as the forecast counts it."""

    width: int
    flops_per_token: int


@dataclass(frozen=True)
class Recipe:
    """The values that the dial writes into `train`."""

    model: Counted
    sequence_length: int
    rows: int
    """Rows of a step."""
    steps: int

    @property
    def tokens(self) -> int:
        """Tokens of all steps."""
        return self.rows * self.steps * self.sequence_length

    @property
    def flops(self) -> int:
        """Operations of all steps."""
        return self.tokens * self.model.flops_per_token

    @property
    def values(self) -> dict[str, Any]:
        """By the keys of `train`; what is not here stays as it is."""
        # Both rules are nanochat's (scripts/base_train.py), there the second for AdamW's rate alone. Below the
        # reference's batch rates stay as they are.
        by_batch = max(1.0, self.rows * self.sequence_length / REFERENCE_BATCH_TOKENS) ** 0.5
        by_width = (REFERENCE_WIDTH / self.model.width) ** 0.5
        return {
            "model": model_of(self.model.width, self.sequence_length),
            "global_batch_size": self.rows,
            "max_steps": self.steps,
            "optimizer.name": "muon",
            "optimizer.muon_learning_rate": rounded(MUON_LEARNING_RATE * by_batch * by_width),
            "optimizer.adamw_learning_rate": rounded(ADAMW_LEARNING_RATE * by_batch * by_width),
            "schedule.warmup_steps": max(1, round(WARMUP_SHARE * self.steps)),
        }


def recipe_of(model: Counted, flops: float, sequence_length: int) -> Recipe:
    """The recipe that trains a model for that many FLOP, to within half a step."""
    tokens = flops / model.flops_per_token
    batch = REFERENCE_BATCH_TOKENS * (tokens / REFERENCE_TOKENS) ** BATCH_EXPONENT
    rows = sharing(batch / sequence_length)
    return Recipe(model, sequence_length, rows, round(tokens / (rows * sequence_length)))


def sharing(rows: float) -> int:
    """A number of rows that devices can share: from 16 on a multiple of 8, from 128 on of 64."""
    unit = 1 if rows < 16 else 8 if rows < 128 else 64
    return max(1, round(rows / unit) * unit)


def best_recipe(
    flops: float, sequence_length: int, count: Callable[[int], Counted], corpus_tokens: float | None
) -> Recipe | None:
    """The recipe with the fewest bits per byte by the law for that many FLOP; None if no model gets enough steps.

    Over widths the law has one valley: the search ends where it has risen four times in a row, since layers come
    in whole numbers.
    """
    best: tuple[float, Recipe] | None = None
    risen = 0
    for width in widths():
        recipe = recipe_of(count(width), flops, sequence_length)
        if recipe.steps < MIN_STEPS:
            break
        model = recipe.model
        bits = LAW.bits_per_byte(model.flops_per_token, flops, corpus_tokens)
        if best is None or bits < best[0]:
            best, risen = (bits, recipe), 0
        else:
            risen += 1
        if risen == 4:
            break
    return best[1] if best else None


def rounded(rate: float) -> float:
    """Two digits: rates are not known any closer."""
    return float(f"{rate:.2g}")
