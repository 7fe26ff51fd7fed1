"""Files that people write: how they are opened and decompressed, what their names say they hold, and what is text.

A name's ending says what a file holds, also before that of a compression: `ROWS` hold rows (stages/formats/rows.py),
`ARCHIVES` are not read, and any other file is text.
"""

import bz2
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from stages.runtime.atomic import require_here
from stages.runtime.errors import UserError, message_on_one_line

ROWS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
"""Endings of files with a value in each row."""

ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar", ".lz4")

NOT_UTF8 = "not UTF-8"

NULS = "text with a few NUL bytes (`tr -d '\\000'` removes them)"

SURROGATE = "half of a surrogate pair (\\ud800 to \\udfff), which is no character (remove it)"

EMPTY = "empty"

UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""How a text in UTF-16 begins."""

HEAD_BYTES = 2**20
"""How far a text is looked at to tell whether it is JSON."""

Opener: TypeAlias = Callable[[BinaryIO], BinaryIO]


def _open_zstd(stream: BinaryIO) -> BinaryIO:
    import pyarrow as pa  # slow; its reader refuses a file that is cut off, and compares a checksum if there is one

    return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"))


OPENERS: dict[str, Opener] = {
    ".gz": cast("Opener", gzip.open),
    ".bz2": cast("Opener", bz2.open),
    ".xz": cast("Opener", lzma.open),
    ".zst": _open_zstd,
}

DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""Exceptions of a file that cannot be read or decompressed."""


def without_query(path: str) -> str:
    """A path; a web address without its query, which says nothing of what kind of file it is."""
    return path.partition("?")[0] if path.startswith(("http://", "https://")) else path


def compression(name: str) -> str:
    """The ending of the file's compression, in lower case; empty if it has none."""
    name = without_query(name).lower()
    return next((end for end in OPENERS if name.endswith(end)), "")


def ending(name: str) -> str:
    """The lower-case extension of a file's name, without that of a compression: `.jsonl` for `A.JSONL.gz`."""
    name = without_query(name).lower()
    for end in OPENERS:
        name = name.removesuffix(end)
    stem, dot, last = name.rpartition(".")
    return f".{last}" if dot and stem and "/" not in last else ""


@contextmanager
def decompressed(name: str, stream: BinaryIO) -> Iterator[BinaryIO]:
    """The content of a stream, decompressed if the name says so."""
    if end := compression(name):
        with OPENERS[end](stream) as content:
            yield content
    else:
        yield stream


@contextmanager
def opened_file(path: Path, remedy: str = "correct or remove it") -> Iterator[BinaryIO]:
    """The content of a file of this machine, decompressed if its name says so. Raises UserError, which ends with
    `remedy`, if it cannot be read or is damaged."""
    require_here(path)
    try:
        with path.open("rb") as stream, decompressed(path.name, stream) as content:
            yield content
    except DAMAGED as error:
        raise UserError(f"{path}: cannot be read ({message_on_one_line(error)}); {remedy}") from None


def text_reader(name: str, stream: BinaryIO) -> BinaryIO:
    """A reader of a text's bytes. Raises UserError for JSON, whose braces and keys would be taken for text."""
    reader = io.BufferedReader(cast("io.RawIOBase", stream), HEAD_BYTES)
    if looks_like_rows(reader.peek(HEAD_BYTES)):
        raise UserError(f"{name}: is JSON, not text: rename it to .jsonl or .json, or leave it out")
    return cast("BinaryIO", reader)


_ARRAY_OF_OBJECTS = re.compile(r'\[\s*\{\s*"')
_BEGINS = re.compile(r'\{\s*"[^"\n]*"\s*:\s*(?:["{\[\d-]|true|false|null)|\[\s*["{\[]')


def looks_like_rows(content: bytes) -> bool:
    """True if a text is JSON in whole, begins as an array of objects, or begins with a JSON value and another one after
    it. Only the first `HEAD_BYTES` are looked at: a first value that is longer counts if it begins as JSON."""
    if b" " < content[:1] < b"\x80" and content[:1] not in b"{[":  # most texts, which need not be decoded for it
        return False
    head = content[:HEAD_BYTES].decode("utf-8", "ignore").removeprefix("\ufeff").strip()
    if not head.startswith(("{", "[")):
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(head)
    except (ValueError, RecursionError):
        return bool((_BEGINS if len(content) >= HEAD_BYTES else _ARRAY_OF_OBJECTS).match(head))
    rest = head[end:].lstrip()
    return not rest or bool(_BEGINS.match(rest))


def check_text(content: bytes | str) -> tuple[str, str]:
    """A content as text, and why it cannot be a document: one of them empty. A byte-order mark is not part of it."""
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
        if b"\0" in data and not data.startswith(UTF16):
            return "", "binary (NUL bytes)" if is_binary(data) else NULS
        text = data.decode("utf-8-sig")
    except UnicodeEncodeError:
        return "", SURROGATE
    except UnicodeDecodeError:
        return "", NOT_UTF8
    return ("", EMPTY) if not text or text.isspace() else (text, "")


def is_binary(content: bytes) -> bool:
    """True if more than one in 500 bytes is NUL, as in UTF-16 and in most formats that are no text."""
    return content.startswith(UTF16) or content.count(b"\0") * 500 > len(content)


def to_utf8(content: bytes) -> str:
    """The command that probably makes UTF-8 of a text that is not; most of it may be UTF-8, with damaged bytes."""
    if content.startswith(UTF16):
        return "iconv -f utf-16 -t utf-8"
    text = content.decode("utf-8", "replace")
    is_utf8 = sum(not one.isascii() for one in text) >= 2 * text.count("\ufffd")
    return "iconv -c -f utf-8 -t utf-8" if is_utf8 else "iconv -f cp1252 -t utf-8"
