"""The dial, `parrotflow params compute=`: the model size with the fewest bits per byte for a compute budget.

A law predicts the bits per byte that a model of a given size reaches with a given compute. A model's size is its
operations per token, so embedding rows that are only looked up do not count. The coefficients are the fit `valley` of
`experiments/dial.yaml`, which `parrotflow sweep dial` runs again; a test compares the two. Fixed rules derive shape,
batch, steps, warm-up and rates from the size. docs/how-to/training.md says what was measured.
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
"""Outside of the measured range, the best size grows as compute to this power: Hoffmann et al. 2022, "Training
Compute-Optimal Large Language Models", table 2, approaches 1 and 2. The fit's own exponent, from few runs of a few
hundred steps, is lower and would choose models that are much too small."""


@dataclass(frozen=True)
class Law:
    """log bits per byte = k0 + k1 u + k2 v + k3 v^2 + k4 u v + k5 u^2: u is log TFLOP, v log MFLOP per token.

    For each compute this is a parabola over the size, fitted by `experiments/dial.py`. Outside of the measured range
    its minimum continues with the slope at the edge, at a size that grows as compute^`BEYOND`.
    """

    coefficients: tuple[float, float, float, float, float, float]
    measured_tflop: tuple[float, float]
    """The least and the most compute of the fitted runs."""

    def bits_per_byte(self, flops_per_token: float, flops: float, corpus_tokens: float | None = None) -> float:
        """Prediction for a model trained with `flops` on a corpus of `corpus_tokens`; None: no token is repeated.

        Repeated tokens, and the compute spent on them, count for less, which moves the minimum to that of less compute.
        The best size stays that of all compute, which favors larger models: they repeat less.
        """
        worth = effective_tokens(flops / flops_per_token, corpus_tokens) * flops_per_token / 1e12
        off = math.log(flops_per_token / self.best_flops_per_token(flops))
        return math.exp(self._bottom(math.log(worth)) + self.coefficients[3] * off**2)

    def best_flops_per_token(self, flops: float) -> float:
        """The size with the fewest bits per byte, if no token is repeated."""
        _, _, k2, k3, k4, _ = self.coefficients
        u = math.log(flops / 1e12)
        edge = self._measured(u)
        return 1e6 * math.exp(-(k2 + k4 * edge) / (2 * k3) + BEYOND * (u - edge))

    def covers(self, flops: float) -> bool:
        """True if `flops` are within the measured range, or at most 1 % outside."""
        low, high = self.measured_tflop
        return 0.99 * low <= flops / 1e12 <= 1.01 * high

    def _bottom(self, u: float) -> float:
        """The lowest log bits per byte at log TFLOP `u`."""
        k0, k1, k2, k3, k4, k5 = self.coefficients
        edge = self._measured(u)
        slope = k1 + 2 * k5 * edge - k4 * (k2 + k4 * edge) / (2 * k3)
        return k0 + k1 * edge + k5 * edge**2 - (k2 + k4 * edge) ** 2 / (4 * k3) + slope * (u - edge)

    def _measured(self, u: float) -> float:
        """The nearest log TFLOP that was measured."""
        low, high = map(math.log, self.measured_tflop)
        return min(max(u, low), high)


def effective_tokens(tokens: float, corpus_tokens: float | None) -> float:
    """How many unique tokens would be worth as much as `tokens` of a corpus that is repeated.

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
"""Fitted to models of the dial's shapes on sequences of 256 tokens of Python code, with a vocabulary of 32,768 and
`head_rows` 512."""

MIN_STEPS = 20
"""The learning rate must warm up and decay within the steps."""


REFERENCE_WIDTH, REFERENCE_TOKENS, REFERENCE_BATCH_TOKENS = 64, 4.608e6, 2048
MUON_LEARNING_RATE, ADAMW_LEARNING_RATE = 0.006, 0.016
"""The reference run, from which batch and rates are scaled: the default recipe (docs/explanation/recipe.md)."""

BATCH_EXPONENT = 0.383
"""The batch grows as the run's tokens to this power: nanochat, dev/LOG.md of 2026-02-05, after Bergsma et al. 2025,
"Power Lines"."""

WARMUP_SHARE = 0.02
"""Share of all steps: 45 of the reference's 2,250."""


def widths() -> Iterator[int]:
    """Multiples of 32 up to 256, then of 64 up to 1,024, then of 128, up to 16,384."""
    width = 0
    while width < 16_384:
        width += 32 if width < 256 else 64 if width < 1024 else 128
        yield width


def model_of(width: int, sequence_length: int) -> dict[str, Any]:
    """A Qwen3 of 2 + width / 64 layers, heads of 32 (from width 512 on 64), and MLPs of 5/2 of the width.

    The embedding is untied from the output matrix: looking it up costs no operations.
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
    """Rows per step."""
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
        """The values to change, by their keys in `train`."""
        # Both rules are from nanochat (scripts/base_train.py), which applies the second to AdamW alone. Batches smaller
        # than the reference's do not lower the rates.
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
    """The recipe that trains a model with `flops`, rounded to a whole step."""
    tokens = flops / model.flops_per_token
    batch = REFERENCE_BATCH_TOKENS * (tokens / REFERENCE_TOKENS) ** BATCH_EXPONENT
    rows = sharing(batch / sequence_length)
    return Recipe(model, sequence_length, rows, round(tokens / (rows * sequence_length)))


def sharing(rows: float) -> int:
    """Round to a number of rows that devices can share: from 16 on a multiple of 8, from 128 on of 64."""
    unit = 1 if rows < 16 else 8 if rows < 128 else 64
    return max(1, round(rows / unit) * unit)


def best_recipe(
    flops: float, sequence_length: int, count: Callable[[int], Counted], corpus_tokens: float | None
) -> Recipe | None:
    """The recipe with the fewest bits per byte by the law; None if no model gets enough steps.

    The law has one minimum over the widths, apart from the rounding of layers, so the search ends after the prediction
    has risen four times in a row.
    """
    best: tuple[float, Recipe] | None = None
    risen = 0
    for width in widths():
        recipe = recipe_of(count(width), flops, sequence_length)
        if recipe.steps < MIN_STEPS:
            break
        bits = LAW.bits_per_byte(recipe.model.flops_per_token, flops, corpus_tokens)
        if best is None or bits < best[0]:
            best, risen = (bits, recipe), 0
        else:
            risen += 1
        if risen == 4:
            break
    return best[1] if best else None


def rounded(rate: float) -> float:
    """Round to two digits."""
    return float(f"{rate:.2g}")
