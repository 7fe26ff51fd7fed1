"""CodeParrot's and BigCode's filters of source code: by lines, characters, comments, and signs that there is no logic.

The features are CodeParrot's (Tunstall et al., Natural Language Processing with Transformers, ch. 10) and give its
figures exactly. They are counted with numpy over the text's bytes, many times as fast as one character after the other.
"""

import re
import string
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stages.clean.filtering import (
    Count,
    DocumentText,
    Drop,
    Feature,
    Features,
    Filter,
    PositiveNumber,
    Share,
    above,
    below,
    draw_candidates,
)
from stages.runtime.section import Section

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    ByteClasses = npt.NDArray[np.uint8]

ALPHANUMERIC = re.compile(r"[^\W_]+")
"""Runs of what `str.isalnum` is true of."""

COMMENT_LINE = re.compile(r"\n[ \t]*#([^\n]*)")

SPACE, SIGN, LOWER, UPPER, DIGIT = range(5)
CLASSES = {
    **dict.fromkeys(b"\t\n\v\f\r ", SPACE),
    **dict.fromkeys(string.ascii_lowercase.encode(), LOWER),
    **dict.fromkeys(string.ascii_uppercase.encode(), UPPER),
    **dict.fromkeys(string.digits.encode(), DIGIT),
}
BYTE_CLASSES = bytes(CLASSES.get(byte, SIGN if byte < 128 else LOWER) for byte in range(256))


class Characters(Filter):
    """Data, minified code, number tables. The thresholds' defaults are CodeParrot's."""

    line_length_maximum: Count | None
    """Drop a document with a longer line, in characters: data and minified code."""
    line_length_mean_maximum: PositiveNumber | None
    """Drop a document whose lines are longer on average, in characters."""
    alphanumeric_share_minimum: Share | None
    """Drop a document with a smaller share of letters and digits among its characters."""
    characters_per_token_minimum: PositiveNumber | None
    """Drop a document with fewer characters per token of the reference split: number tables, encoded data."""
    digit_share_maximum: Share | None
    """Drop a document with a larger share of digits among its characters."""

    @staticmethod
    def measure(text: DocumentText) -> dict[str, Feature]:
        """The lengths of lines, and the shares of kinds of characters."""
        import numpy as np  # slow, and the parameters are checked without it

        lengths, classes = text.line_lengths, byte_classes(text.data)
        characters = max(len(text.text), 1)
        return {
            "line_length_maximum": int(lengths.max(initial=0)),
            "line_length_mean": int(lengths.sum()) / max(len(lengths), 1),
            "alphanumeric_share": alphanumeric(text, classes) / characters,
            "digit_share": np.count_nonzero(classes == DIGIT) / characters,
            "characters_per_token": len(text.text) / max(reference_tokens(classes), 1),
        }

    def drops(self, features: Features, seed: int) -> Iterator[Drop]:
        """As `Filter.drops`."""
        yield from above(features, "line_length_maximum", self.line_length_maximum)
        yield from above(features, "line_length_mean", self.line_length_mean_maximum)
        yield from below(features, "alphanumeric_share", self.alphanumeric_share_minimum)
        yield from below(features, "characters_per_token", self.characters_per_token_minimum)
        yield from above(features, "digit_share", self.digit_share_maximum)


def byte_classes(data: bytes) -> "ByteClasses":
    """The class of each byte of UTF-8 text. Each byte of a character beyond ASCII is a lower-case letter."""
    import numpy as np

    return np.frombuffer(data.translate(BYTE_CLASSES), dtype=np.uint8)


def alphanumeric(text: DocumentText, classes: "ByteClasses") -> int:
    """Letters and digits of any script. Only the characters beyond ASCII, mostly few, are looked up one by one."""
    import numpy as np

    in_ascii = np.count_nonzero(classes >= LOWER)
    if text.is_ascii:
        return int(in_ascii)
    # A text has as many more bytes than characters as there are bytes after the first of each character.
    beyond_bytes = len(text.data) - len(text.text) + len(text.beyond_ascii)
    return int(in_ascii) - beyond_bytes + sum(map(len, ALPHANUMERIC.findall(text.beyond_ascii)))


def reference_tokens(classes: "ByteClasses") -> int:
    """Tokens of text under a fixed split, in place of the tokenizer, which is trained only afterwards.

    A token is a run of letters (a capital begins one), a single digit, or a run of signs, with the white space before
    it. It is finer than a trained vocabulary on prose and close to it on code.
    """
    import numpy as np

    here, before = classes[1:], classes[:-1]
    continues = ((here == before) & (here != DIGIT)) | ((before == UPPER) & (here == LOWER))
    return int(np.count_nonzero(classes) - np.count_nonzero(continues & (here != SPACE)))


class Comments(Filter):
    """Code without a word about it, and files of comments alone."""

    comment_share_minimum: Share | None
    """Drop a document with a smaller share of characters in comments and docstrings (BigCode: 0.01)."""
    comment_share_maximum: Share | None
    """Drop a document with a larger share of characters in comments and docstrings (BigCode: 0.8)."""

    @staticmethod
    def measure(text: DocumentText) -> dict[str, Feature]:
        """The share of characters in comments."""
        return {"comment_share": comment_characters(text.text) / max(len(text.text), 1)}

    def drops(self, features: Features, seed: int) -> Iterator[Drop]:
        """As `Filter.drops`."""
        yield from below(features, "comment_share", self.comment_share_minimum)
        yield from above(features, "comment_share", self.comment_share_maximum)


def comment_characters(text: str) -> int:
    """Characters between triple quotes, and of lines that begin with `#` outside them, without the quotes, the indent
    and the `#`: an estimate for Python without parsing it."""
    total = 0
    for quotes in ('"""', "'''"):
        parts = text.split(quotes)
        total += sum(map(len, parts[1:-1:2]))
        unclosed = parts[-1:] if len(parts) % 2 == 0 else []
        text = "".join([*parts[0::2], *unclosed])
    return total + sum(map(len, COMMENT_LINE.findall("\n" + text)))


FIRST_LINES = 5
"""Marks of generated, configuration and test files are looked for in this many lines."""

GENERATED_MARKS = ("auto-generated", "autogenerated", "automatically generated")
CONFIG_OR_TEST_MARKS = ("unit tests", "test file", "configuration file")
KEYWORDS = ("def ", "class ", "for ", "while ")


class ConfigOrTest(Section):
    """CodeParrot's filter of configuration and test files: many, and much alike."""

    probability: Share
    """Share of such files that is dropped, drawn by a hash of (seed, document)."""
    occurrences_per_line: Share
    """A file counts as one if it has more `config` or more `test` than this times its lines. Higher: fewer files."""


class PythonCode(Filter):
    """Files that were generated, configure or test something, or hold no logic."""

    generated: bool
    """Drop a document whose first 5 lines say that it was generated automatically."""
    assignments_minimum: Count | None
    """Drop a document with fewer `=` characters."""
    config_or_test: ConfigOrTest | None
    """Drop some of the configuration and test files."""
    no_keywords_probability: Share | None
    """Share that is dropped of the documents with none of `def`, `class`, `for`, `while`, drawn by a hash of (seed,
    document)."""

    @staticmethod
    def measure(text: DocumentText) -> dict[str, Feature]:
        """Counts and marks, in lower case and in the first lines."""
        head = "\n".join(text.first_lines(FIRST_LINES)).lower()
        return {
            "assignments": text.text.count("="),
            "config_count": text.lowered.count("config"),
            "test_count": text.lowered.count("test"),
            "config_or_test_mark": any(mark in head for mark in CONFIG_OR_TEST_MARKS),
            "generated_mark": any(mark in head for mark in GENERATED_MARKS),
            "has_keyword": any(keyword in text.lowered for keyword in KEYWORDS),
        }

    def drops(self, features: Features, seed: int) -> Iterator[Drop]:
        """As `Filter.drops`."""
        yield from below(features, "assignments", self.assignments_minimum)
        if self.generated:
            yield "generated", features["generated_mark"]
        if (chosen := self.config_or_test) is not None:
            limit = features["newlines"] * chosen.occurrences_per_line
            often = features[["config_count", "test_count"]].max(axis=1) > limit
            candidates = features["config_or_test_mark"] | often
            yield (
                "config_or_test",
                draw_candidates(features["id"], candidates, chosen.probability, seed, "config_or_test"),
            )
        if (probability := self.no_keywords_probability) is not None:
            yield (
                "no_keywords",
                draw_candidates(features["id"], ~features["has_keyword"], probability, seed, "no_keywords"),
            )
