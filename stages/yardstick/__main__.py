"""Clean documents -> bits per byte of compressors on the held-out ones: `python -m stages.yardstick`.

They are the baseline for a model's bits per byte. The stage needs no model, so it can run during training.
"""

from importlib.metadata import version

from stages.formats.documents import CLEAN, read_documents, read_shard, require_documents
from stages.formats.evaluation.report import Yardstick
from stages.formats.reports import significant, write_metrics
from stages.formats.tokens import TRAIN, VALIDATION
from stages.runtime.stage import run_stage
from stages.runtime.workers import counted
from stages.yardstick.compressors import COMPRESSORS, PPMD_MEMORY, PPMD_ORDER, compressed_bytes

MAX_TRAINING_BYTES = 16_000_000
"""How much of the end of the training text a compressor reads first. It reads about a million bytes per second."""


def main() -> None:
    require_documents(CLEAN / VALIDATION)
    training_text = last_text(MAX_TRAINING_BYTES)
    cold = {name: bits_per_byte(name, b"") for name in COMPRESSORS}
    after = {name: bits_per_byte(name, training_text) for name in COMPRESSORS}
    Yardstick(
        bits_per_byte=after,
        bits_per_byte_cold=cold,
        training_bytes=len(training_text),
        convention=(
            f"PPMd (7-Zip's, order {PPMD_ORDER}, {PPMD_MEMORY >> 20:,} MiB) and xz -9 compress each held-out document "
            "by itself (less the bytes of an empty one): cold, and after reading the last "
            f"{len(training_text):,} bytes of the training text."
        ),
        versions={"pyppmd": version("pyppmd")},
    ).write()
    write_metrics("yardstick", {f"{name}_bits_per_byte": value for name, value in after.items()})


def last_text(limit: int) -> bytes:
    """The last `limit` bytes of the training documents, which are sorted by hash."""
    parts: list[bytes] = []
    for shard in reversed(require_documents(CLEAN / TRAIN)):
        parts.insert(0, "".join(read_shard(shard, ["text"])["text"].to_pylist()).encode("utf-8"))
        if sum(map(len, parts)) >= limit:
            break
    return b"".join(parts)[-limit:]


def bits_per_byte(name: str, text: bytes) -> float:
    """Bits per byte of all held-out documents, compressed after reading `text`."""
    if text:
        print(f"{name}: reading {len(text):,} bytes of training text", flush=True)
    encode = COMPRESSORS[name](text)
    empty = compressed_bytes(encode, b"")
    compressed = size = 0
    for document in counted(read_documents(CLEAN / VALIDATION), name, "documents"):
        encoded = document.text.encode("utf-8")
        compressed, size = compressed + compressed_bytes(encode, encoded) - empty, size + len(encoded)
    return significant(8 * compressed / size)


if __name__ == "__main__":
    run_stage(main)
