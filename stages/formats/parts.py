"""A corpus larger than the disk passes in parts: which parts there are, and how a command is told its part.

A part is the documents whose sha256 begins with its bits.
"""

import sys

from stages.runtime.entry import UserError

WHOLE = ""
"""The bits of the part that is all of the corpus."""

OPTION = "--part"
"""How a stage's command is told its part; it has no other arguments."""

WHO_ASKS = "PARROTFLOW_PART_FOR"
"""Of the environment: the module that a part is for. What dvc.yaml lists, it lists for its stage."""

MOST_BITS = 16


def bits_of_parts(count: int) -> list[str]:
    """The bits of `count` parts of equal size: of 4 parts 00, 01, 10 and 11. Raises UserError unless that is possible.

    A power of two, since each bit halves the corpus.
    """
    depth = count.bit_length() - 1
    if count != 2**depth or not 1 <= depth <= MOST_BITS:
        raise UserError(f"{count} parts: expected a power of two from 2 to {2**MOST_BITS:,}, such as 8")
    return [f"{number:0{depth}b}" for number in range(count)]


def is_first(part: str) -> bool:
    """Whether it is the first part, or the whole."""
    return "1" not in part


def asked_part() -> str:
    """The bits that this command was given; `WHOLE` without arguments. Raises UserError for other arguments."""
    arguments = sys.argv[1:]
    if not arguments:
        return WHOLE
    if len(arguments) != 2 or arguments[0] != OPTION or not arguments[1] or set(arguments[1]) - {"0", "1"}:
        raise UserError(f"{' '.join(arguments)}: expected nothing, or `{OPTION} BITS` such as `{OPTION} 01`")
    return arguments[1]
