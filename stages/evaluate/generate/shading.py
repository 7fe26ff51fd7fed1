"""How likely each token of a text was: as it is recorded, and as the page shades it."""

from collections.abc import Sequence
from itertools import accumulate
from math import exp
from typing import NamedTuple

from stages.evaluate.generate.texts import Text
from stages.formats.evaluation.generation import SampledTokens

SHADES = (0.5, 0.1, 0.01, 0.001)
"""Probabilities: a token has as many shades as it is less likely than of these."""

SHADED_TOKENS = 200_000
"""Of a page, at most: each is an element of some 40 bytes."""


class ShadedToken(NamedTuple):
    """A piece of a text on the page."""

    text: str
    shade: int
    """0, the likeliest, to 4."""
    log_probability: float
    """Of a character that several tokens make up, that of all of them."""


def sampled_tokens(text: Text) -> SampledTokens:
    """As they are recorded."""
    written = text.written
    return SampledTokens(
        kind=text.kind,
        name=text.name,
        sample=text.sample,
        tokens=written.pieces,
        log_probabilities=written.log_probabilities,
    )


def shaded_tokens(text: Text) -> tuple[list[ShadedToken], str]:
    """The tokens of what was kept of a text, cut at its ends, and what the text has after them: an added line's end."""
    written = "".join(text.written.pieces)[text.skipped :]
    both = zip(written, text.text, strict=False)
    kept = next((n for n, (one, other) in enumerate(both) if one != other), min(len(written), len(text.text)))
    found, end, likelihood = [], -text.skipped, 0.0
    for piece, log_probability in zip(text.written.pieces, text.written.log_probabilities, strict=True):
        begin, end, likelihood = end, end + len(piece), likelihood + log_probability
        if shown := written[max(begin, 0) : min(max(end, 0), kept)]:
            found.append(ShadedToken(shown, sum(exp(likelihood) < bound for bound in SHADES), likelihood))
        if piece:
            likelihood = 0.0
    return found, text.text[kept:]


def texts_to_shade(texts: Sequence[Text]) -> int:
    """How many of the texts, the first ones, have no more than `SHADED_TOKENS` together."""
    return sum(tokens <= SHADED_TOKENS for tokens in accumulate(len(text.written.pieces) for text in texts))
