"""How reports of evaluation write a number, and which libraries they name."""

from collections.abc import Iterable
from importlib.metadata import version

SIGNIFICANT_DIGITS = 6
"""Further ones are float32's rounding, which changes with the batch size."""

MODEL_LIBRARIES = ("numpy", "tokenizers", "torch", "transformers")
"""What computes with a model."""


def significant(value: float) -> float:
    """Rounded to `SIGNIFICANT_DIGITS`."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def releases(libraries: Iterable[str] = MODEL_LIBRARIES) -> dict[str, str]:
    """Library -> version, without a build tag (2.13.0+cpu): it says which hardware the release is for."""
    return {library: version(library).split("+")[0] for library in libraries}
