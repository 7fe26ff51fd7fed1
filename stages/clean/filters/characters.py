"""Filters by the length of lines and the kinds of characters.

The features are CodeParrot's (Tunstall et al., Natural Language Processing with Transformers, ch. 10) and give its
figures exactly; text in ASCII takes a path over bytes, several times as fast as one over characters.
"""

import string
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stages.clean.filtering import Count, DocumentText, Drop, Feature, Filter, Positive, Share, above, below

if TYPE_CHECKING:
    import pandas as pd

ALPHANUMERIC = (string.ascii_letters + string.digits).encode()
NOT_ALPHANUMERIC = bytes(set(range(256)) - set(ALPHANUMERIC))
NOT_DIGIT = bytes(set(range(256)) - set(string.digits.encode()))
ASCII = bytes(range(128))

SPACE, LOWER, UPPER, DIGIT, SIGN = range(5)
BYTE_CLASSES = bytes(
    SPACE
    if byte in b"\t\n\v\f\r "
    else LOWER
    if byte in string.ascii_lowercase.encode() or byte >= 128
    else UPPER
    if byte in string.ascii_uppercase.encode()
    else DIGIT
    if byte in string.digits.encode()
    else SIGN
    for byte in range(256)
)


class Characters(Filter):
    """Data, minified code, number tables. The thresholds' defaults are CodeParrot's."""

    line_length_maximum: Count | None
    """Drop a document with a longer line, in characters: data and minified code."""
    line_length_mean_maximum: Positive | None
    """Drop a document whose lines are longer on average, in characters."""
    alphanumeric_share_minimum: Share | None
    """Drop a document with a smaller share of letters and digits among its characters."""
    characters_per_token_minimum: Positive | None
    """Drop a document with fewer characters per token of the reference split: number tables, encoded data."""
    digit_share_maximum: Share | None
    """Drop a document with a larger share of digits among its characters."""

    @staticmethod
    def measure(text: DocumentText) -> dict[str, Feature]:
        """The lengths of lines, and the shares of kinds of characters."""
        lengths = list(map(len, text.lines))
        characters = max(len(text.text), 1)
        return {
            "line_length_maximum": max(lengths, default=0),
            "line_length_mean": sum(lengths) / max(len(lengths), 1),
            "alphanumeric_share": alphanumeric(text.data) / characters,
            "digit_share": len(text.data.translate(None, NOT_DIGIT)) / characters,
            "characters_per_token": len(text.text) / max(reference_tokens(text.data), 1),
        }

    def drops(self, features: "pd.DataFrame", seed: int) -> Iterator[Drop]:
        """As `Filter.drops`."""
        yield from above(features, "line_length_maximum", self.line_length_maximum)
        yield from above(features, "line_length_mean", self.line_length_mean_maximum)
        yield from below(features, "alphanumeric_share", self.alphanumeric_share_minimum)
        yield from below(features, "characters_per_token", self.characters_per_token_minimum)
        yield from above(features, "digit_share", self.digit_share_maximum)


def alphanumeric(data: bytes) -> int:
    """Letters and digits of any script. Only the characters beyond ASCII, mostly few, are looked at one by one."""
    beyond_ascii = data.translate(None, ASCII).decode("utf-8")
    return len(data.translate(None, NOT_ALPHANUMERIC)) + sum(map(str.isalnum, beyond_ascii))


def reference_tokens(data: bytes) -> int:
    """Tokens of UTF-8 text under a fixed split, in place of the tokenizer, which is trained only afterwards.

    A token is a run of letters (a capital begins one), a single digit, or a run of signs, with the white space before
    it. It is finer than a trained vocabulary on prose and close to it on code.
    """
    import numpy as np  # slow, and the parameters are checked without it

    if not data:
        return 0
    classes = np.frombuffer(data.translate(BYTE_CLASSES), dtype=np.uint8)
    previous = np.concatenate([np.array([SPACE], dtype=np.uint8), classes[:-1]])
    continues = (classes == previous) & (classes != DIGIT)
    continues |= (previous == UPPER) & (classes == LOWER)
    return int(np.count_nonzero(~continues & (classes != SPACE)))
