"""One document edited in a large corpus: what collect, clean and tokenize cost again, compared with a run from nothing.

    python -m benchmarks.edit [--quick]

Each stage runs as its own process, as DVC runs it, after its outs were removed, as DVC removes them. The tokenizer is
given, so that the edit does not train another one. Also measured: the same edit with one that changes nothing, and the
bytes of both ways are compared.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.corpora.python_source import python_documents
from benchmarks.measurements import compare, record
from stages.runtime.hashes import file_sha256
from stages.tokenizer.bpe import train_bpe
from stages.tokenizer.train import save_trained

ROOT = Path(__file__).parents[1]
STAGES = {"collect": ["data/documents"], "clean": ["data/clean"], "tokenize": ["data/tokens"]}


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        size, count = write_project(project, 30_000_000 if quick else 300_000_000)
        figures = measure(project, size, count, runs=1 if quick else 3)
    record("edit", figures, quick=quick)


def write_project(project: Path, limit: int) -> tuple[float, int]:
    """A project with its corpus as files and a tokenizer; megabytes and number of documents."""
    size, count, sample = 0, 0, []
    for document in python_documents(limit):
        place = project / "corpus" / document.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(document.text, encoding="utf-8", newline="")
        size += document.size
        count += 1
        if size < 10_000_000:
            sample.append(document.text)
    (project / "data" / "tokenizer").mkdir(parents=True)
    save_trained(train_bpe([sample], 32_768, "gpt2"), project / "data" / "tokenizer")
    params: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    origin = {"name": "corpus", "revision": "", "license": "", "share": 1.0, "max_bytes": None}
    params["collect"] |= {"sources": [{"kind": "files", "globs": ["corpus"], **origin}], "shard_bytes": 8_000_000}
    params["clean"]["split"] = {"by": "document", "validation_sources": [], "validation_share": 0.02}
    (project / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    shutil.copyfile(ROOT / "requirements.lock", project / "requirements.lock")
    return size / 1e6, count


def measure(project: Path, size: float, count: int, runs: int) -> list[Any]:
    """Seconds of each stage from nothing and after an edit."""
    edited = next(path for path in sorted((project / "corpus").rglob("*.py")) if 5_000 < path.stat().st_size < 20_000)
    full, again = [], []
    for number in range(runs):
        for cache in (".parrotflow", "data/documents", "data/clean", "data/tokens"):
            shutil.rmtree(project / cache, ignore_errors=True)
        full.append(run_stages(project))
        with edited.open("a", encoding="utf-8") as file:
            file.write(f"\nEDITED = {number}\n")
        again.append(run_stages(project))
    incremental = hashes(project)
    shutil.rmtree(project / ".parrotflow")
    run_stages(project)
    if hashes(project) != incremental:
        raise SystemExit("an edit and a run from nothing give different bytes")
    what = f"one document edited in {count:,}, {size:.0f} MB"
    stages = [figure(f"{stage}: {what}", [a[stage] for a in again], [f[stage] for f in full]) for stage in STAGES]
    together = figure(f"together: {what}", [sum(a.values()) for a in again], [sum(f.values()) for f in full])
    return [*stages, together]


def figure(name: str, ours: list[float], full: list[float]) -> Any:
    """The edit compared with the run from nothing."""
    return compare(name, ours, full, peer_name="from nothing", unit="s", higher_is_better=False, libraries=["pyarrow"])


def run_stages(project: Path) -> dict[str, float]:
    """Seconds of each stage's process."""
    seconds = {}
    for stage, outs in STAGES.items():
        for out in outs:
            shutil.rmtree(project / out, ignore_errors=True)
        start = time.perf_counter()
        command = [sys.executable, "-m", f"stages.{stage}"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=project, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds[stage] = time.perf_counter() - start
    return seconds


def hashes(project: Path) -> dict[str, str]:
    """Every file of the results."""
    return {path.relative_to(project).as_posix(): file_sha256(path) for path in sorted((project / "data").rglob("*.*"))}


if __name__ == "__main__":
    main()
