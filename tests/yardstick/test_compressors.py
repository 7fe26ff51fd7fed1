"""Compressors with a memory: the sizes are those of the definition, and no document is read before another."""

import lzma
import os
import random
import signal

import pytest
from pyppmd import Ppmd7Encoder

from stages.runtime.errors import UserError
from stages.yardstick.compressors import COMPRESSORS, PPMD_MEMORY, PPMD_ORDER, compressed_bytes, ppmd, xz
from tests.small_project import function_text

TEXT = "".join(map(function_text, range(300))).encode()
DOCUMENTS = [function_text(number).encode() for number in (7, 999)]


def by_ppmd(data: bytes) -> int:
    encoder = Ppmd7Encoder(PPMD_ORDER, PPMD_MEMORY)
    return len(encoder.encode(data)) + len(encoder.flush())


def by_xz(data: bytes) -> int:
    return len(lzma.compress(data, preset=9))


DEFINITIONS = {"ppmd": by_ppmd, "xz": by_xz}


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
@pytest.mark.parametrize("text", [b"", TEXT], ids=["cold", "primed"])
def test_a_document_takes_what_the_text_with_it_takes_more_than_without_it(name: str, text: bytes) -> None:
    whole, encode = DEFINITIONS[name], COMPRESSORS[name](text)
    empty = compressed_bytes(encode, b"")

    for document in DOCUMENTS * 2:  # the second time as much as the first: none is remembered
        assert compressed_bytes(encode, document) - empty == whole(text + document) - whole(text)


@pytest.mark.parametrize("name", sorted(COMPRESSORS))
def test_what_was_read_makes_a_document_shorter(name: str) -> None:
    for document in DOCUMENTS:
        cold, primed = (COMPRESSORS[name](text) for text in (b"", TEXT))
        assert compressed_bytes(primed, document) - compressed_bytes(primed, b"") < compressed_bytes(cold, document) / 3


def test_text_is_compressed_once_and_not_in_each_fork() -> None:
    noise = random.Random(0).randbytes(2**20)

    assert compressed_bytes(xz(noise), b"") < 2**18
    assert compressed_bytes(ppmd(noise), b"") < 2**5


def test_a_compressor_that_is_killed_is_reported() -> None:
    def killed(document: bytes) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return len(document)

    with pytest.raises(UserError, match=r"^a compressor was killed, .* it needs 2 GB$"):
        compressed_bytes(killed, b"x")
