"""Filters by the share of comments and docstrings."""

import re
from collections.abc import Iterator

from stages.clean.filtering import DocumentText, Drop, Feature, Features, Filter, Share, above, below

COMMENT_LINE = re.compile(r"\n[ \t]*#([^\n]*)")


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
