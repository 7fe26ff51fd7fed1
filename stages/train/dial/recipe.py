"""The recipe of a size: shape, batch, steps, warm-up and rates, each by a fixed rule."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stages.train.dial.law import LAW, Law

Width = int

LEAST_STEPS = 20
"""Fewer are no training: rates are warmed up and brought down within them."""

LARGEST_WIDTH = 16_384


REFERENCE_WIDTH, REFERENCE_TOKENS, REFERENCE_BATCH_TOKENS = 64, 2.048e6, 2048
MUON_LEARNING_RATE, ADAMW_LEARNING_RATE = 0.0042, 0.012
"""Of the run from which batch and rates follow. The rates are near the best of `recipe_embedding.yaml` at width 64 with
12 rows, and at width 32 with 1 TFLOP, where few others were run."""

BATCH_EXPONENT = 0.383
"""The batch grows as tokens to this power: nanochat, dev/LOG.md of 2026-02-05, after Bergsma et al. 2025,
"Power Lines"."""

WARMUP_SHARE = 0.02
"""Of the steps: 20 of the 1,000 of the reference."""


def widths() -> Iterator[Width]:
    """Multiples of 32 up to 256, then of 64 up to 1,024, then of 128, up to `LARGEST_WIDTH`."""
    width = 0
    while width < LARGEST_WIDTH:
        width += 32 if width < 256 else 64 if width < 1024 else 128
        yield width


def model_of(width: Width, sequence_length: int) -> dict[str, Any]:
    """A Qwen3: 2 + width / 64 layers, heads of 32 (of 64 from width 512 on), 5/2 of the width inside.

    The embedding is not the output matrix too: it is only looked up, which costs no FLOPs.
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

    width: Width
    parameters: int
    flops_per_token: int


@dataclass(frozen=True)
class Recipe:
    """What the dial writes into `train`."""

    model: Counted
    sequence_length: int
    rows: int
    """Of a step."""
    steps: int

    @property
    def tokens(self) -> int:
        """Of all steps."""
        return self.rows * self.steps * self.sequence_length

    @property
    def flops(self) -> int:
        """Of all steps."""
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
            "batch_doublings": [],
            "max_steps": self.steps,
            "optimizer.name": "muon",
            "optimizer.muon_learning_rate": rounded(MUON_LEARNING_RATE * by_batch * by_width),
            "optimizer.adamw_learning_rate": rounded(ADAMW_LEARNING_RATE * by_batch * by_width),
            "schedule.warmup_steps": max(1, round(WARMUP_SHARE * self.steps)),
        }


def recipe_of(model: Counted, flops: float, sequence_length: int) -> Recipe:
    """The recipe that trains a model for that many FLOPs, to within half a step."""
    tokens = flops / model.flops_per_token
    batch = REFERENCE_BATCH_TOKENS * (tokens / REFERENCE_TOKENS) ** BATCH_EXPONENT
    rows = sharing(batch / sequence_length)
    return Recipe(model, sequence_length, rows, round(tokens / (rows * sequence_length)))


def sharing(rows: float) -> int:
    """A number of rows that devices can share: from 16 on a multiple of 8, from 128 on of 64."""
    unit = 1 if rows < 16 else 8 if rows < 128 else 64
    return max(1, round(rows / unit) * unit)


def best_recipe(
    flops: float,
    sequence_length: int,
    count: Callable[[Width], Counted],
    corpus_tokens: float | None = None,
    law: Law = LAW,
) -> Recipe | None:
    """The recipe with the fewest bits per byte by the law for that many FLOPs; None where no model gets enough steps.

    Over widths the law has one valley: the search ends where it has risen four times in a row, since layers come
    in whole numbers.
    """
    best: tuple[float, Recipe] | None = None
    risen = 0
    for width in widths():
        recipe = recipe_of(count(width), flops, sequence_length)
        if recipe.steps < LEAST_STEPS:
            break
        model = recipe.model
        bits = law.bits_per_byte(model.parameters, flops, flops / model.flops_per_token, corpus_tokens)
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
