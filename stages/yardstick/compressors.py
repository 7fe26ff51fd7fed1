"""The compressed size of a document after the compressor has read other text.

Like a model, a compressor reads each held-out document separately. Its state cannot be copied, but its process can, so
each document is compressed in a fork.
"""

import lzma
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeAlias

from pyppmd import Ppmd7Encoder

from stages.runtime.errors import UserError

Encoder: TypeAlias = Callable[[bytes], int]
"""Compresses a document and returns its size in bytes. It can be called once."""

PPMD_ORDER = 16
"""The maximum context in bytes."""

PPMD_MEMORY = 2**30
"""Bytes for the tree of contexts; 28 MB of Python code fill it."""

PIECE_BYTES = 2**16
"""Bytes per call. Python's `lzma` compresses a piece when it gets the next one, so each fork compresses the last."""


def ppmd(text: bytes) -> Encoder:
    """7-Zip's PPMd (variant H): prediction by partial matching, which counts the bytes that followed each context."""
    encoder = Ppmd7Encoder(PPMD_ORDER, PPMD_MEMORY)
    encoder.encode(text)
    return lambda document: len(encoder.encode(document)) + len(encoder.flush())


def xz(text: bytes) -> Encoder:
    """As `xz -9`: text that occurred in the last 64 MiB is replaced by its distance and length."""
    encoder = lzma.LZMACompressor(preset=9)
    for start in range(0, len(text), PIECE_BYTES):
        encoder.compress(text[start : start + PIECE_BYTES])
    return lambda document: len(encoder.compress(document)) + len(encoder.flush())


COMPRESSORS: dict[str, Callable[[bytes], Encoder]] = {"ppmd": ppmd, "xz": xz}
"""Name -> a function that returns an encoder that has read a text."""


def compressed_bytes(encode: Encoder, document: bytes) -> int:
    """The size of a document in bytes, compressed in a fork. Raises UserError if the fork was killed.

    The fork does nothing else, because it may inherit locks that threads of libraries hold.
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
