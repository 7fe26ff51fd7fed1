"""How many bits per byte a model of some size reaches with some compute: the law behind `parrotflow params compute=`.

The figures are the fit `valley` of the experiment `experiments/dial.yaml`, which `parrotflow sweep dial` makes anew; a
test compares the two. What was measured and what was not: docs/how-to/training.md.
"""

import math
from dataclasses import dataclass

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
    """log bits per byte = k0 + k1 u + k2 v + k3 v^2 + k4 u v + k5 u^2: u is log TFLOP, v log million parameters.

    At each compute a parabola over the size, as `flows/experiments/statistics.py` fits it. Outside of the compute that
    was measured its bottom continues with the slope that it has at the edge, at a size that grows as compute^`BEYOND`.
    """

    coefficients: tuple[float, float, float, float, float, float]
    measured_tflop: tuple[float, float]
    """Least and most compute of the runs behind it."""

    def bits_per_byte(
        self, parameters: float, flops: float, tokens: float, corpus_tokens: float | None = None
    ) -> float:
        """Expected of a model after `tokens`, drawn from a corpus of `corpus_tokens`; None: none is repeated.

        A token that is repeated counts for less, and so does the compute that is spent on it: the bottom is that of
        less compute. The best size stays that of all compute, so that a larger model, which repeats less, gains.
        """
        worth = flops / 1e12 * effective_tokens(tokens, corpus_tokens) / tokens
        off = math.log(parameters / self.best_parameters(flops))
        return math.exp(self._bottom(math.log(worth)) + self.coefficients[3] * off**2)

    def best_parameters(self, flops: float) -> float:
        """With the fewest bits per byte, if no token is repeated."""
        _, _, k2, k3, k4, _ = self.coefficients
        u = math.log(flops / 1e12)
        edge = self._measured(u)
        return 1e6 * math.exp(-(k2 + k4 * edge) / (2 * k3) + BEYOND * (u - edge))

    def covers(self, flops: float) -> bool:
        """Whether compute lies within what was measured, but for 1 %."""
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
    coefficients=(0.604062177, -0.16774555, 0.161829958, 0.0655840032, -0.0596150951, 0.0116696599),
    measured_tflop=(0.3, 18.9),
)
"""Of models of the dial's shapes with a vocabulary of 4,096, in rows of 256 tokens of Python code."""
