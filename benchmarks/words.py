"""The distinct words of documents, hashed, compared with cutting them in Python: the same words, in CPU seconds.

    python -m benchmarks.words [--quick]

The peer cuts each text into a set of words, as `word_list` defines them, and has rensa hash the sets. Code is the
installed Python source. The other text is made up: words beyond ASCII that occur in that source, drawn by rank, a
language in each document. Both find as many words in each text.
"""

import argparse
import random
import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle

import numpy as np
import pyarrow as pa
import regex
from rensa import RMinHash

from benchmarks.corpora.python_source import python_documents
from benchmarks.measurements import Measurement, compare, interleave, record
from stages.clean.words import WordHashes, word_hashes, word_list

SCRIPTS = ("Latin", "Cyrillic", "Greek", "Han", "Hangul", "Arabic", "Devanagari", "Thai")
BEYOND_ASCII = regex.compile(r"[\p{L}\p{M}--\p{ASCII}]+", regex.V1)

WORDS_EACH = 1500
"""Of a document."""


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    code = [document.text for document in python_documents(5_000_000 if quick else 40_000_000)]
    beyond = list(texts_beyond_ascii(2_000_000 if quick else 20_000_000))
    figures = [
        measure(name, texts, 1 if quick else 7) for name, texts in (("Python", code), ("text beyond ASCII", beyond))
    ]
    record("words", figures, quick=quick)


def texts_beyond_ascii(limit_bytes: int) -> Iterator[str]:
    """Texts of a script each, with lines of about ten words."""
    sources = (document.text for document in python_documents(100_000_000) if not document.text.isascii())
    known = sorted({word for source in sources for word in BEYOND_ASCII.findall(source)})
    of_script = [[word for word in known if regex.match(rf"\p{{{script}}}", word)] for script in SCRIPTS]
    draw = random.Random(0)
    for words in cycle(filter(None, of_script)):
        by_rank = [1 / rank for rank in range(1, len(words) + 1)]
        text = "".join(word + draw.choice("       .,\n") for word in draw.choices(words, by_rank, k=WORDS_EACH))
        limit_bytes -= len(text.encode())
        if limit_bytes < 0:
            return
        yield text


def measure(name: str, texts: list[str], runs: int) -> Measurement:
    """CPU seconds per GB of both sides."""
    column = pa.chunked_array([texts], pa.string())
    gigabytes = sum(len(text.encode()) for text in texts) / 1e9
    found: dict[str, list[WordHashes]] = {}

    def side(label: str) -> float:
        start = time.process_time()
        found[label] = list(word_hashes(column, "unicode")) if label == "ours" else by_sets(column)
        return (time.process_time() - start) / gigabytes

    seconds = interleave({label: partial(side, label) for label in ("ours", "sets")}, runs)
    if [len(words) for words in found["ours"]] != [len(words) for words in found["sets"]]:
        raise SystemExit("the words differ")
    return compare(
        f"distinct words hashed, {len(texts):,} documents, {gigabytes * 1000:.0f} MB of {name}, CPU time, one process",
        seconds["ours"],
        seconds["sets"],
        peer_name="sets of words, rensa's hash",
        unit="s/GB",
        higher_is_better=False,
        libraries=["numpy", "rensa", "regex"],
    )


def by_sets(column: pa.ChunkedArray) -> list[WordHashes]:
    """The same by Python's sets."""
    sets = [set(word_list(text, "unicode")) for text in column.to_pylist()]
    return [np.sort(np.array(hashes, dtype=np.uint64)) for hashes in RMinHash.hash_token_sets(sets)]


if __name__ == "__main__":
    main()
