"""A part of a corpus: the documents whose ids begin with some bits, one branch of the trie of documents.

Ids are hashes, so each part is a uniform sample, equal texts lie in one part, and the shards of the parts together are
those of the whole corpus.
"""

import sys

from stages.runtime.entry import UserError

WHOLE = ""
"""The bits of the part that is all of the corpus."""

OPTION = "--part"
"""How a stage's command is told its part; it has no other arguments."""

MOST_BITS = 16


def bits_of_parts(count: int) -> list[str]:
    """The bits of `count` parts of equal size: of 4 parts 00, 01, 10 and 11. Raises UserError unless that is possible.

    A power of two, since each bit halves the corpus.
    """
    depth = count.bit_length() - 1
    if count != 2**depth or not 1 <= depth <= MOST_BITS:
        raise UserError(f"{count} parts: expected a power of two from 2 to {2**MOST_BITS:,}, such as 8")
    return [f"{number:0{depth}b}" for number in range(count)]


def asked_part() -> str:
    """The bits that this command was given; `WHOLE` without arguments. Raises UserError for other arguments."""
    arguments = sys.argv[1:]
    if not arguments:
        return WHOLE
    if len(arguments) != 2 or arguments[0] != OPTION or not arguments[1] or set(arguments[1]) - {"0", "1"}:
        raise UserError(f"{' '.join(arguments)}: expected nothing, or `{OPTION} BITS` such as `{OPTION} 01`")
    return arguments[1]
