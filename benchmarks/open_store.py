"""What it takes a training process to open the token store of ten million documents.

    python -m benchmarks.open_store [--quick]

The store is synthetic: document lengths of a log-normal distribution (500 tokens in the median), and token files that
are holes, since no token is looked at. The packing index is built by the first process of a machine, and mapped by each
other one. Opened means that the first batch of 512 rows of 2048 tokens is there. Memory is what the process has more
than after its imports: its own, and its view of mapped files, which all processes of a machine share. The bounds are
5 s and 200 MB.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measurements import compare, record
from stages.formats.splits import TRAIN
from stages.formats.tokens import STORE_MANIFEST, TOKENS, Manifest, ShardEntry, TokenStore
from stages.train.data.batches import read_rows
from stages.train.data.packing import Integers, pack

ROOT = Path(__file__).parents[1]
STORE = TOKENS / TRAIN
DOCUMENTS_OF_SHARD = 100_000
SEQUENCE_LENGTH = 2048
BATCH = 512
BOUND_SECONDS, BOUND_MEGABYTES = 5.0, 200.0
RUNS = 5


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--open", action="store_true", help="open the store of this folder and say what it took")
    arguments = parser.parse_args()
    if arguments.open:
        print(json.dumps(opened()))
        return
    shards = 5 if arguments.quick else 100
    with tempfile.TemporaryDirectory() as folder:
        write_store(Path(folder), shards)
        first, *others = (in_a_process(Path(folder)) for _ in range(1 + RUNS))
    store = f"{shards * DOCUMENTS_OF_SHARD / 1e6:g}M documents"
    figures = [
        compare(
            f"{store}: {figure}", [run[name] for run in runs], bound, peer_name="the bound" if bound else "", unit=unit,
            higher_is_better=False, libraries=["numpy"],
        )
        for figure, name, runs, bound, unit in (
            ("the first process, which builds the index", "seconds", [first], None, "s"),
            ("the first process, on the processor", "cpu_seconds", [first], None, "s"),
            ("the first process, its memory at most", "VmHWM", [first], None, "MB"),
            ("each other process", "seconds", others, [BOUND_SECONDS], "s"),
            ("each other process, its own memory", "RssAnon", others, [BOUND_MEGABYTES], "MB"),
            ("each other process, its view of files that all share", "RssFile", others, None, "MB"),
        )
    ]  # fmt: skip
    record("open_store", figures, quick=arguments.quick)


def write_store(project: Path, shards: int) -> None:
    """Write a token store with this number of shards into a project's folder."""
    folder = project / STORE
    folder.mkdir(parents=True)
    manifest = Manifest("uint16", 50_000, 0, "", "tokenizers", tuple(write_shards(folder, shards)))
    (folder / STORE_MANIFEST).write_text(manifest.to_json(), encoding="utf-8")


def write_shards(folder: Path, shards: int) -> Iterator[ShardEntry]:
    """The files of each shard that a process maps."""
    random = np.random.default_rng(0)
    for number in range(shards):
        lengths: Integers = 1 + random.lognormal(np.log(500), 1.0, DOCUMENTS_OF_SHARD).astype(np.int64)
        name, tokens = f"s{number:03}", int(lengths.sum())
        np.cumulative_sum(lengths, include_initial=True).astype("<i8").tofile(folder / f"{name}.offsets.bin")
        with (folder / f"{name}.tokens.bin").open("wb") as file:
            file.truncate(2 * tokens)
        yield ShardEntry(name, DOCUMENTS_OF_SHARD, tokens, 4 * tokens, {})


def in_a_process(project: Path) -> dict[str, float]:
    """What `opened` says in a new process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.open_store", "--open"]
    ended = subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True, text=True)
    said: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return said


def opened() -> dict[str, float]:
    """Open the store and read the first batch: seconds, on the clock and of all threads, and megabytes."""
    before, began, computed = memory_bytes(), time.perf_counter(), time.process_time()
    store = TokenStore(STORE)
    index = pack(store, SEQUENCE_LENGTH)
    rows = np.random.default_rng([0, 0]).permutation(index.rows)[:BATCH]
    read_rows(store, index, rows, SEQUENCE_LENGTH)
    seconds, cpu_seconds, after = time.perf_counter() - began, time.process_time() - computed, memory_bytes()
    return {"seconds": seconds, "cpu_seconds": cpu_seconds} | {
        name: (after[name] - before[name]) / 1e6 for name in after
    }


def memory_bytes() -> dict[str, int]:
    """What this process holds: its own, its part of files that are mapped, and the most of both so far."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    kibibytes = dict(line.split(":", 1) for line in lines)
    return {name: 1024 * int(kibibytes[name].split()[0]) for name in ("RssAnon", "RssFile", "VmHWM")}


if __name__ == "__main__":
    main()
