"""One document edited in a large corpus: what the data stages cost again, compared with a run from nothing.

    python -m benchmarks.edit [--quick] [--megabytes 300] [--runs 3]

Each stage runs as its own process, as DVC runs it, after its outs were removed, as DVC removes them. Figures are the
CPU seconds of a stage and its workers, start-up and imports included: other work on the machine hardly changes them.

- From nothing the tokenizer stage counts and merges the corpus. After an edit it counts one shard and merges again; the
  edit may change a merge, and then the corpus is encoded anew. Where it did not, or a tokenizer was given
  (`kind: existing`), one shard is encoded. Both ways are measured: with the trained tokenizer, and without its stage.
- In the end the bytes after the last edit are compared with those of a run from nothing.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.corpora.python_source import python_documents
from benchmarks.measurements import Measurement, compare, record
from stages.runtime.hashes import file_sha256

ROOT = Path(__file__).parents[1]
STAGES = {
    "collect": ["data/documents"],
    "clean": ["data/clean"],
    "tokenizer": ["data/tokenizer"],
    "tokenize": ["data/tokens"],
}
GIVEN = "tokenize, tokenizer kept"
"""Encoding after the edit by the tokenizer of the run from nothing."""

Seconds = dict[str, float]
"""Stage -> CPU seconds."""


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--megabytes", type=int, default=300, help="of text")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    quick = arguments.quick
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        size, count = write_project(project, 30_000_000 if quick else arguments.megabytes * 1_000_000)
        figures = measure(project, size, count, runs=1 if quick else arguments.runs)
    record("edit", figures, quick=quick)


def write_project(project: Path, limit: int) -> tuple[float, int]:
    """A project with its corpus as files; megabytes and number of documents."""
    size, count = 0, 0
    for document in python_documents(limit):
        place = project / "corpus" / document.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(document.text, encoding="utf-8", newline="")
        size += document.size
        count += 1
    params: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    origin = {"name": "corpus", "revision": "", "license": "", "share": 1.0, "max_bytes": None}
    params["collect"] |= {"sources": [{"kind": "files", "globs": ["corpus"], **origin}], "shard_bytes": 8_000_000}
    params["clean"]["split"] = {"by": "document", "validation_sources": [], "validation_share": 0.02}
    params["tokenizer"]["vocabulary_size"] = 32_768
    (project / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    shutil.copyfile(ROOT / "requirements.lock", project / "requirements.lock")
    return size / 1e6, count


def measure(project: Path, size: float, count: int, runs: int) -> list[Measurement]:
    """CPU seconds of each stage from nothing and after an edit."""
    edited = next(path for path in sorted((project / "corpus").rglob("*.py")) if 5_000 < path.stat().st_size < 20_000)
    full, again = [], []
    for number in range(runs):
        for cache in (".parrotflow", "data"):
            shutil.rmtree(project / cache, ignore_errors=True)
        full.append(run_stages(project))
        with edited.open("a", encoding="utf-8") as file:
            file.write(f"\nEDITED = {number}\n")
        again.append(run_edited(project))
    incremental = hashes(project)
    shutil.rmtree(project / ".parrotflow")
    run_stages(project)
    if hashes(project) != incremental:
        raise SystemExit("an edit and a run from nothing give different bytes")
    what = f"one document edited in {count:,}, {size:.0f} MB: CPU time"
    figures = [figure(f"{stage}: {what}", again, full, [stage], [stage]) for stage in STAGES]
    data = ["collect", "clean"]
    return [
        *figures,
        figure(f"{GIVEN}: {what}", again, full, [GIVEN], ["tokenize"]),
        figure(f"together: {what}", again, full, [*STAGES], [*STAGES]),
        figure(f"together, tokenizer kept: {what}", again, full, [*data, GIVEN], [*STAGES]),
    ]


def figure(name: str, again: list[Seconds], full: list[Seconds], ours: list[str], theirs: list[str]) -> Measurement:
    """Some stages after the edit compared with some from nothing."""
    return compare(
        name,
        [sum(seconds[stage] for stage in ours) for seconds in again],
        [sum(seconds[stage] for stage in theirs) for seconds in full],
        peer_name="from nothing",
        unit="s",
        higher_is_better=False,
        libraries=["pyarrow", "ffbpe", "fastokens"],
    )


def run_edited(project: Path) -> Seconds:
    """As `run_stages`, and between them encoding with the tokenizer that was there before."""
    seconds = {stage: run_stage(project, stage) for stage in ("collect", "clean")}
    seconds[GIVEN] = run_stage(project, "tokenize")
    return seconds | {stage: run_stage(project, stage) for stage in ("tokenizer", "tokenize")}


def run_stages(project: Path) -> Seconds:
    """All of them."""
    return {stage: run_stage(project, stage) for stage in STAGES}


def run_stage(project: Path, stage: str) -> float:
    """CPU seconds of a stage's process and its workers."""
    for out in STAGES[stage]:
        shutil.rmtree(project / out, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", f"stages.{stage}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=project, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def hashes(project: Path) -> dict[str, str]:
    """Every file of the results."""
    return {path.relative_to(project).as_posix(): file_sha256(path) for path in sorted((project / "data").rglob("*.*"))}


if __name__ == "__main__":
    main()
