"""FxHash, the hash of the library rensa, of many words at once.

The algorithm is that of the Rust crate rustc-hash 2.1: the first and last 8 bytes of a word, each with a constant
mixed in, are multiplied to 128 bits, whose halves are combined. Words are not made Python objects, which would cost
three times as much as everything here.
"""

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from stages.clean.vectorized.word_spans import Positions

Numbers = npt.NDArray[np.uint64]

PADDING = 16
"""Bytes that the text must have before its first word and after its last one: words are read 8 bytes at a time."""

BLOCK = 2**16
"""Words that are hashed at once, so that a large document takes no more memory than others."""

LONGEST = 1024
"""Bytes of a word that is hashed here. A longer one is data, and rare."""

SEED_1, SEED_2 = np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344)
NO_ZERO = np.uint64(0xA4093822299F31D0)
FACTOR = np.uint64(0xF1357AEA2E62A9C5)
HALF, LOW_HALF = np.uint64(32), np.uint64(0xFFFFFFFF)


def _by_length(of_1: int, of_2_and_3: int, of_4_to_7: int, of_8_to_16: int) -> Numbers:
    return np.array([0, of_1, *[of_2_and_3] * 2, *[of_4_to_7] * 4, *[of_8_to_16] * 9], dtype=np.uint64)


# A word of 8 to 16 bytes is hashed by its first and last 8, one of 4 to 7 by its first and last 4, a shorter one by
# its first, its last and its middle byte.
FIRST = _by_length(0xFF, 0xFF, 0xFFFFFFFF, 2**64 - 1)
"""Bits that count of the 8 bytes from the first one on."""
LAST_SHIFT = _by_length(56, 56, 32, 0)
"""Bits that do not count of the 8 bytes up to the last one."""
LAST_PLACE = _by_length(8, 8, 0, 0)
MIDDLE_SHIFT = _by_length(0, 8, 0, 0)
MIDDLE = _by_length(0xFF, 0xFF, 0, 0)


def fxhash(data: bytes, starts: Positions, ends: Positions) -> Numbers:
    """The hash of each word data[start:end], none of them empty."""
    hashes = np.empty(len(starts), dtype=np.uint64)
    for first in range(0, len(starts), BLOCK):
        block = slice(first, first + BLOCK)
        hashes[block] = _hashes(data, starts[block], ends[block])
    return hashes


def _hashes(data: bytes, starts: Positions, ends: Positions) -> Numbers:
    eight_bytes: Numbers = np.ndarray(len(data) - 7, dtype="<u8", buffer=data, strides=(1,))
    lengths = ends - starts
    row = np.minimum(lengths, 16)
    first, last = eight_bytes[starts], eight_bytes[ends - 8]
    low = SEED_1 ^ (first & FIRST[row])
    high = SEED_2 ^ (((last >> LAST_SHIFT[row]) << LAST_PLACE[row]) | ((first >> MIDDLE_SHIFT[row]) & MIDDLE[row]))
    long = np.flatnonzero((lengths > 16) & (lengths <= LONGEST))
    low[long], high[long] = _long(eight_bytes, starts[long], ends[long] - 16)
    hashes = (_mixed(low, high) ^ lengths.astype(np.uint64)) * FACTOR
    hashes = (hashes << np.uint64(26)) | (hashes >> np.uint64(38))
    for word in np.flatnonzero(lengths > LONGEST).tolist():
        hashes[word] = RMinHash.hash_token_sets([[data[starts[word] : ends[word]]]])[0][0]
    return hashes


def _long(eight_bytes: Numbers, positions: Positions, last: Positions) -> tuple[Numbers, Numbers]:
    """What is multiplied of words of more than 16 bytes: 16 bytes after 16, then the last 16."""
    low, high = np.full(len(last), SEED_1), np.full(len(last), SEED_2)
    is_open = np.arange(len(last))
    while len(is_open):
        here = positions[is_open]
        mixed = _mixed(low[is_open] ^ eight_bytes[here], NO_ZERO ^ eight_bytes[here + 8])
        low[is_open], high[is_open] = high[is_open], mixed
        positions[is_open] += 16
        is_open = is_open[positions[is_open] < last[is_open]]
    return low ^ eight_bytes[last], high ^ eight_bytes[last + 8]


def _mixed(first: Numbers, second: Numbers) -> Numbers:
    """The upper half of each product of 128 bits, combined with the lower half: schoolbook by halves of 32 bits."""
    low, high = first & LOW_HALF, first >> HALF
    other_low, other_high = second & LOW_HALF, second >> HALF
    left = high * other_low + ((low * other_low) >> HALF)
    right = low * other_high + (left & LOW_HALF)
    upper: Numbers = high * other_high + (left >> HALF) + (right >> HALF)
    return upper ^ (first * second)
