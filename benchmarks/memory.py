"""Peak memory of each data stage on a corpus much larger than what a stage may hold.

    python -m benchmarks.memory [--quick]

The corpus is synthetic: the installed Python source over and over, each copy with an edit in every document, written
as lines of JSON. The figure is the peak resident memory of a stage's process and its workers together, as sampled; the
bound is 2 GiB and two shards. The second run of each figure's shards is not cached: everything is computed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.corpora.python_source import python_documents
from benchmarks.measurements import Measurement, compare, record

ROOT = Path(__file__).parents[1]
STAGES = ("collect", "clean", "tokenizer", "tokenize")
SHARD_BYTES = 64_000_000
BOUND_GIB = 2 + 2 * SHARD_BYTES / 2**30
SECONDS_BETWEEN_SAMPLES = 0.05


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    limit = 100_000_000 if quick else 2_000_000_000
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        size = write_project(project, limit)
        figures = [figure(stage, size, *run_stage(project, stage)) for stage in STAGES]
    record("memory", [one for pair in figures for one in pair], quick=quick)


def write_project(project: Path, limit: int) -> float:
    """A project whose corpus is one file of JSON lines; gigabytes of text."""
    originals = [(document.source, document.path, document.text) for document in python_documents(200_000_000)]
    size = copy = 0
    with (project / "corpus.jsonl").open("w", encoding="utf-8") as file:
        while size < limit:
            for source, path, text in originals:
                edited = f"COPY = {copy}\n{text.replace('self', f'self_{copy}')}"
                row = {"source": f"{source}-{copy}", "path": path, "text": edited}
                file.write(json.dumps(row) + "\n")
                size += len(edited.encode("utf-8"))
                if size >= limit:
                    break
            copy += 1
    params: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    origin: dict[str, Any] = {"name": "corpus", "revision": "", "license": "", "share": 1.0, "max_bytes": None}
    rows = {"text": ["text"], "fields": {"source": "source", "path": "path", "license": None}}
    corpus = {"kind": "files", "globs": ["corpus.jsonl"], "part_bytes": None, **origin, **rows}
    params["collect"] |= {"sources": [corpus], "shard_bytes": SHARD_BYTES}
    params["clean"]["split"] = {"by": "source", "validation_sources": [], "validation_share": 0.02}
    params["tokenizer"] |= {"vocabulary_size": 32_768, "training_bytes": 500_000_000}
    (project / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    shutil.copyfile(ROOT / "requirements.lock", project / "requirements.lock")
    return size / 1e9


def run_stage(project: Path, stage: str) -> tuple[float, float]:
    """Peak GiB and seconds of one stage."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", f"stages.{stage}"], cwd=project, env=environment)
    peak = [0]
    watcher = threading.Thread(target=watch, args=(process, peak))
    watcher.start()
    if process.wait():
        raise SystemExit(f"{stage} failed")
    watcher.join()
    return peak[0] / 2**30, time.perf_counter() - start


def watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    """Keep the highest sum of resident memory of a process and its children."""
    while process.poll() is None:
        try:
            root = psutil.Process(process.pid)
            peak[0] = max(peak[0], sum(one.memory_info().rss for one in [root, *root.children(recursive=True)]))
        except psutil.Error:
            pass
        time.sleep(SECONDS_BETWEEN_SAMPLES)


def figure(stage: str, size: float, peak: float, seconds: float) -> list[Measurement]:
    """The peak next to the bound, and the time per gigabyte."""
    corpus = f"{size:.1f} GB of text, shards of {SHARD_BYTES // 10**6} MB"
    libraries = ["pyarrow"]
    return [
        compare(
            f"{stage}: peak memory, {corpus}", [peak], [BOUND_GIB], peer_name="the bound", unit="GiB",
            higher_is_better=False, libraries=libraries,
        ),
        compare(
            f"{stage}: time per GB, {corpus}", [seconds / size], None, unit="s/GB", higher_is_better=False,
            libraries=libraries,
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
