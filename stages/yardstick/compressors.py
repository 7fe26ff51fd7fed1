"""How many bytes a compressor needs for a document after it has read other text.

Like a model, it takes each held-out document separately. The state of a compressor cannot be copied, but its process
can: each document is compressed in a fork, so that no document sees another.
"""

import lzma
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeAlias

from pyppmd import Ppmd7Encoder

from stages.runtime.errors import UserError

Encoder: TypeAlias = Callable[[bytes], int]
"""Compresses one document to its end and returns how many bytes it takes. It works once."""

PPMD_ORDER = 16
"""Bytes of context, at most."""

PPMD_MEMORY = 2**30
"""Bytes that its tree of contexts may take; 28 MB of Python fill it."""

PIECE_BYTES = 2**16
"""Text given at once: Python's `lzma` compresses a piece when it gets the next one, and the last piece in each fork."""


def ppmd(text: bytes) -> Encoder:
    """PPMd of 7-Zip (variant H): prediction by partial matching, which counts what followed the last bytes before."""
    encoder = Ppmd7Encoder(PPMD_ORDER, PPMD_MEMORY)
    encoder.encode(text)
    return lambda document: len(encoder.encode(document)) + len(encoder.flush())


def xz(text: bytes) -> Encoder:
    """As `xz -9`: text that occurred before, in the last 64 MiB, is named by its distance and length."""
    encoder = lzma.LZMACompressor(preset=9)
    for start in range(0, len(text), PIECE_BYTES):
        encoder.compress(text[start : start + PIECE_BYTES])
    return lambda document: len(encoder.compress(document)) + len(encoder.flush())


COMPRESSORS: dict[str, Callable[[bytes], Encoder]] = {"ppmd": ppmd, "xz": xz}
"""Name -> an encoder that has read this text."""


def compressed_bytes(encode: Encoder, document: bytes) -> int:
    """The bytes of one document, compressed in a fork. Raises UserError if it was killed.

    The fork runs nothing else, as threads of libraries may hold locks that it inherits.
    """
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    fork = context.Process(target=_send, args=(encode, document, sender))
    fork.start()
    sender.close()
    try:
        size: int = receiver.recv()
    except EOFError:
        raise UserError("a compressor was killed, most likely because memory ran out: it needs 2 GB") from None
    finally:
        fork.join()
        receiver.close()
    return size


def _send(encode: Encoder, document: bytes, sender: Connection) -> None:
    sender.send(encode(document))
