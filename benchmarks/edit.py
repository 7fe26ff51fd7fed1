"""One document edited in a large corpus: what the data stages cost again, compared with a run from nothing.

    python -m benchmarks.edit [--quick] [--megabytes 300] [--runs 3]

Each stage runs as its own process, as DVC runs it, after its outs were removed, as DVC removes them. Figures are the
CPU seconds of a stage and its workers, start-up and imports included: other work on the machine hardly changes them.

The tokenizer is made in three ways, each compared with itself from nothing, seconds and bytes:

- `trained` on the whole corpus: an edit counts its shards and merges again. Nearly every edit changes a merge, and then
  the corpus is encoded anew.
- `of a sample`: trained on the first tenth of the corpus (`training_bytes`). The edited document is outside of it, as
  nine of ten are, so the tokenizer stays, and the documents' shards are encoded.
- `existing`: given as a folder, here the one that was trained before the edit. Neither side trains one.
"""

import argparse
import itertools
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import yaml

from benchmarks.corpora.python_source import python_documents
from benchmarks.measurements import Measurement, compare, record
from stages.formats.documents import document_id
from stages.runtime.atomic import file_sha256
from stages.runtime.cache import CACHE

ROOT = Path(__file__).parents[1]
STAGES = {
    "collect": ["data/documents"],
    "clean": ["data/clean"],
    "tokenizer": ["data/tokenizer"],
    "tokenize": ["data/tokens"],
}
DOCUMENTS, TOKENS = ("collect", "clean"), ("tokenizer", "tokenize")

SAMPLE, TRAINED, EXISTING = "of a sample", "trained", "existing"
FOLDER = "existing_tokenizer"

SAMPLE_BYTES = 0.1
"""Of the corpus."""

OUTSIDE = "4"
"""First digit of the ids of documents that the sample, of the smallest ids, does not have."""

Seconds = dict[str, float]
"""Stage, of the last two with the way (`tokenizer, trained`), -> CPU seconds."""


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
        path = project / "corpus" / document.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document.text, encoding="utf-8", newline="")
        size += document.size
        count += 1
    write_settings(project)
    return size / 1e6, count


def write_settings(project: Path, **tokenizer: Any) -> None:
    """The parameters of a project whose corpus is files; some of the tokenizer's may be given."""
    params: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    origin = {"name": "corpus", "revision": "", "license": "", "share": 1.0, "max_bytes": None}
    rows = {"text": ["text"], "fields": {"source": None, "path": None, "license": None}, "part_bytes": None}
    source = {"kind": "files", "globs": ["corpus"], **origin, **rows}
    params["collect"] |= {"sources": [source], "shard_bytes": 8_000_000}
    params["clean"]["split"] = {"by": "document", "validation_sources": [], "validation_share": 0.02}
    params["tokenizer"] |= {"vocabulary_size": 32_768} | tokenizer
    (project / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    shutil.copyfile(ROOT / "requirements.lock", project / "requirements.lock")


def measure(project: Path, size: float, count: int, runs: int) -> list[Measurement]:
    """CPU seconds of each stage from nothing and after an edit."""
    ways: dict[str, dict[str, Any]] = {
        SAMPLE: {"training_bytes": int(SAMPLE_BYTES * size * 1e6)},
        TRAINED: {},
        EXISTING: {"kind": "existing", "folder": FOLDER},
    }
    edits = [f"\nEDITED = {number}\n" for number in range(runs)]
    edited = next(path for path in sorted((project / "corpus").rglob("*.py")) if is_outside(path, edits))
    full, again = [], []
    for edit in edits:
        for cache in (".parrotflow", "data", FOLDER):
            shutil.rmtree(project / cache, ignore_errors=True)
        full.append(run_stages(project, ways)[0])
        with edited.open("a", encoding="utf-8") as file:
            file.write(edit)
        seconds, incremental = run_stages(project, ways)
        again.append(seconds)
    shutil.rmtree(project / ".parrotflow")
    if run_stages(project, ways)[1] != incremental:
        raise SystemExit("an edit and a run from nothing give different bytes")
    what = f"one document edited in {count:,}, {size:.0f} MB: CPU time"
    figures = [figure(f"{stage}: {what}", again, full, [stage]) for stage in DOCUMENTS]
    for way in (TRAINED, SAMPLE, EXISTING):
        own = [f"{stage}, {way}" for stage in TOKENS]
        figures += [figure(f"{stage}: {what}", again, full, [stage]) for stage in own]
        figures.append(figure(f"together, tokenizer {way}: {what}", again, full, [*DOCUMENTS, *own]))
    return figures


def is_outside(path: Path, edits: list[str]) -> bool:
    """Whether a document of usual size is outside of the sample before and after each edit."""
    texts = list(itertools.accumulate([path.read_bytes().decode("utf-8"), *edits]))
    return 5_000 < len(texts[0]) < 20_000 and all(document_id(text) >= OUTSIDE for text in texts)


def figure(name: str, again: list[Seconds], full: list[Seconds], stages: list[str]) -> Measurement:
    """Some stages after the edit compared with the same from nothing."""
    after, before = ([sum(seconds[stage] for stage in stages) for seconds in runs] for runs in (again, full))
    return compare(
        name,
        after,
        before,
        peer_name="from nothing",
        unit="s",
        higher_is_better=False,
        libraries=["pyarrow", "ffbpe", "fastokens"],
    )


def run_stages(project: Path, ways: dict[str, dict[str, Any]]) -> tuple[Seconds, dict[str, str]]:
    """All of them, the last two once for each way; their seconds, and the sha256 of every file of the results."""
    is_new = not (project / ".parrotflow").exists()
    params: dict[str, Any] = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))
    seconds = {stage: run_stage(project, stage) for stage in DOCUMENTS}
    sums: dict[str, str] = {}
    for way, changes in ways.items():
        section = {"tokenizer": params["tokenizer"] | changes}
        (project / "params.yaml").write_text(yaml.safe_dump(params | section), encoding="utf-8")
        # What one way has counted and encoded is no part of the next one's cost from nothing.
        with set_aside(project / CACHE) if is_new else nullcontext():
            seconds |= {f"{stage}, {way}": run_stage(project, stage) for stage in TOKENS}
        sums |= {f"{way} {file}": sha256 for file, sha256 in hashes(project).items()}
        if way == TRAINED and not (project / FOLDER).exists():
            shutil.copytree(project / "data/tokenizer", project / FOLDER)
    (project / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return seconds, sums


@contextmanager
def set_aside(folder: Path) -> Iterator[None]:
    """Without a folder; what appears under its name meanwhile is in it afterwards too."""
    aside = folder.rename(folder.with_name(f"{folder.name}.aside"))
    yield
    shutil.copytree(aside, folder, copy_function=os.replace, dirs_exist_ok=True)
    shutil.rmtree(aside)


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
