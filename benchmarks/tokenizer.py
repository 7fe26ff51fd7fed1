"""Training the vocabulary from shards of documents: from nothing, and after one document was edited.

    python -m benchmarks.tokenizer [--quick]

The peer is the library `tokenizers`, fed with the texts of the same files. The tokenizers are compared: the same bytes.
Each turn is a process of its own, and what is measured are the seconds of all cores (CPU time), imports left out.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE

import psutil
from tokenizers import Tokenizer

from benchmarks.corpora.python_source import write_python_corpus
from benchmarks.measurements import compare, interleave, record
from stages.formats.documents import document_id, documents_of, read_shard, shard_paths, write_shard
from stages.runtime.cache import CACHE
from stages.tokenizer.train import train_by_reference, train_on_documents

ROOT = str(Path(__file__).parents[1])
DOCUMENTS = Path("documents")

VOCABULARY = 32_768


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", choices=["train", "train_alone"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        print(timed(train if arguments.work == "train" else train_alone))
        return
    quick = arguments.quick
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        size = write_python_corpus(DOCUMENTS, 10_000_000 if quick else 100_000_000, 8_000_000)
        seconds = interleave({"library": library, "nothing": from_nothing, "edit": after_an_edit}, 1 if quick else 3)
    what = f"byte-level BPE of {VOCABULARY:,} tokens, {size / 1e6:.0f} MB of Python"
    peer = f"tokenizers {version('tokenizers')}, the same files"
    figures = [
        compare(
            f"{what}, {when}: CPU time",
            seconds[side],
            seconds["library"],
            peer_name=peer,
            unit="s",
            higher_is_better=False,
            libraries=["tokenizers", "ffbpe"],
        )
        for when, side in (("from nothing", "nothing"), ("one document edited", "edit"))
    ]
    record("tokenizer", figures, quick=quick)


def library() -> float:
    """Seconds of the library's trainer."""
    return in_process(train_alone)


def from_nothing() -> float:
    """Seconds of the stage's work where no shard was counted before."""
    shutil.rmtree(CACHE, ignore_errors=True)
    return in_process(train)


def after_an_edit() -> float:
    """Seconds of the stage's work after a document has a line more."""
    shard = shard_paths(DOCUMENTS)[0]
    first, *others = documents_of(read_shard(shard))
    text = f"{first.text}EDITED = 1\n"
    write_shard(shard, [replace(first, id=document_id(text), text=text), *others])
    return in_process(train)


def in_process(work: Callable[[], Tokenizer]) -> float:
    """CPU seconds of the work in a process of its own. Raises SystemExit where the tokenizer is another one."""
    command = [sys.executable, "-m", "benchmarks.tokenizer", "--work", work.__name__]
    done = subprocess.run(command, check=True, stdout=PIPE, text=True, env=os.environ | {"PYTHONPATH": ROOT})
    return float(done.stdout.split()[-1])  # after lines of progress


def timed(work: Callable[[], Tokenizer]) -> float:
    """CPU seconds of the work and its worker processes. Raises SystemExit where its result is not the library's."""
    before = cpu_seconds()
    text = work().to_str()
    seconds = cpu_seconds() - before
    if work is not train_alone and text != train_alone().to_str():
        raise SystemExit("the tokenizers differ")
    return seconds


def cpu_seconds() -> float:
    """Of this process and of its workers, which are still up."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def train() -> Tokenizer:
    """As the stage does."""
    return train_on_documents(DOCUMENTS, 2**40, VOCABULARY, "gpt2")


def train_alone() -> Tokenizer:
    """As the library does."""
    batches = (read_shard(shard, ["text"])["text"].to_pylist() for shard in shard_paths(DOCUMENTS))
    return train_by_reference(batches, VOCABULARY, "gpt2")


if __name__ == "__main__":
    main()
