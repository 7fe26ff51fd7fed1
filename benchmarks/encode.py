"""Encoding documents to a token store, compared with `datasets.map`: the same tokenizer, as many processes as cores.

    python -m benchmarks.encode [--quick]

Both sides read the same Parquet shards and end with all ids on the disk; the ids are compared, every one.
"""

import argparse
import os
import shutil
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora.python_source import write_python_corpus
from benchmarks.measurements import compare, interleave, record
from stages.formats.documents import shard_paths
from stages.formats.tokens import TokenStore
from stages.tokenize.encode import Encoding, read_vocabulary, write_store
from stages.tokenize.parity import choose_engine
from stages.tokenizer.train import save_trained, train_on_documents

VOCABULARY = 32_768
PROCESSES = 2


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        figures = measure(20_000_000 if quick else 150_000_000, runs=1 if quick else 3)
        os.chdir(here)
    record("encode", figures, quick=quick)


def measure(limit: int, runs: int) -> list[Any]:
    """Seconds of both sides as megabytes of text per second."""
    size = write_python_corpus(Path("documents"), limit, 16_000_000) / 1e6
    Path("tokenizer").mkdir()
    save_trained(train_on_documents(Path("documents"), 20_000_000, VOCABULARY, "gpt2"), Path("tokenizer"))
    sides = {"ours": encode_by_stage, "datasets": encode_by_datasets}
    seconds = interleave(sides, runs)
    check_the_same_ids()
    speeds = {name: [size / value for value in values] for name, values in seconds.items()}
    figure = compare(
        f"documents to token store, {size:.0f} MB of Python, vocabulary {VOCABULARY:,}",
        speeds["ours"],
        speeds["datasets"],
        peer_name=f"datasets.map(batched=True, num_proc={PROCESSES}) {version('datasets')}",
        unit="MB/s",
        higher_is_better=True,
        libraries=["fastokens", "tokenizers", "datasets"],
    )
    return [figure]


def encode_by_stage() -> float:
    """The stage's own path: the parity gate, then every shard, no cache."""
    for old in (".parrotflow", "store"):
        shutil.rmtree(old, ignore_errors=True)
    Path("store").mkdir()
    start = time.perf_counter()
    shards = shard_paths(Path("documents"))
    vocabulary = read_vocabulary(Path("tokenizer"))
    engine = choose_engine("fastokens", vocabulary.tokenizer_json, shards, 1_000_000)
    write_store(shards, Encoding(vocabulary, engine), Path("store"))
    return time.perf_counter() - start


def encode_by_datasets() -> float:
    """What the course's scripts do: AutoTokenizer in a batched map."""
    from datasets import Dataset, disable_progress_bars
    from transformers import AutoTokenizer

    disable_progress_bars()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = AutoTokenizer.from_pretrained("tokenizer")
    files = [str(path) for path in shard_paths(Path("documents"))]
    rows: Any = Dataset.from_parquet(files, cache_dir="cache", columns=["text"])
    shutil.rmtree("arrow", ignore_errors=True)
    start = time.perf_counter()

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        return {"input_ids": tokenizer(batch["text"], split_special_tokens=True)["input_ids"]}

    encoded = rows.map(
        encode, batched=True, num_proc=PROCESSES, remove_columns=["text"], load_from_cache_file=False,
    )  # fmt: skip
    encoded.save_to_disk("arrow", num_proc=1)
    return time.perf_counter() - start


def check_the_same_ids() -> None:
    """Compare every id of both results."""
    from datasets import load_from_disk

    store = TokenStore(Path("store"))
    for number, row in enumerate(load_from_disk("arrow")):
        if not np.array_equal(store.document(number)[:-1], np.array(row["input_ids"])):
            raise SystemExit(f"document {number} differs: {store.document_info(number)}")


if __name__ == "__main__":
    main()
