"""Training the vocabulary from shards of documents, compared with the library `tokenizers` fed with the same files.

    python -m benchmarks.tokenizer [--quick]

The merges are the same by construction; what is measured is whether reading shard by shard costs anything.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.corpora.python_source import write_python_corpus
from benchmarks.measurements import compare, interleave, record
from stages.formats.documents import read_shard, shard_paths
from stages.tokenizer.train import END_OF_TEXT, sample, train_bpe

VOCABULARY = 32_768


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    trained: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        documents = Path(folder) / "documents"
        size = write_python_corpus(documents, 10_000_000 if quick else 60_000_000, 8_000_000)

        def ours() -> float:
            start = time.perf_counter()
            trained["ours"] = train_bpe(sample(documents, 2**40), VOCABULARY, "gpt2").to_str()
            return time.perf_counter() - start

        def library() -> float:
            start = time.perf_counter()
            trained["library"] = train_alone(read_texts(documents)).to_str()
            return time.perf_counter() - start

        seconds = interleave({"ours": ours, "library": library}, 1 if quick else 3)
    if trained["ours"] != trained["library"]:
        raise SystemExit("the tokenizers differ")
    figure = compare(
        f"byte-level BPE of {VOCABULARY:,} tokens from {size / 1e6:.0f} MB of Python",
        seconds["ours"],
        seconds["library"],
        peer_name=f"tokenizers {version('tokenizers')}, the same files",
        unit="s",
        higher_is_better=False,
        libraries=["tokenizers"],
    )
    record("tokenizer", [figure], quick=quick)


def read_texts(folder: Path) -> Iterator[str]:
    """Every text, from the files."""
    for shard in shard_paths(folder):
        yield from read_shard(shard, ["text"]).column("text").to_pylist()


def train_alone(texts: Iterator[str]) -> Tokenizer:
    """The library's own example of a byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


if __name__ == "__main__":
    main()
