"""From lines of JSON to tokens, compared with datatrove: reading, rules of Gopher and C4, near-duplicates, encoding.

    python -m benchmarks.chain --datatrove PYTHON [--quick]

PYTHON is that of an environment with datatrove (`pip install 'datatrove[processing]' spacy orjson`); without it nothing
is measured. Both sides read the same files, with one worker and a tokenizer that is given; figures are CPU seconds of
all processes, start-up included. With the default of 100 MB that is a sixth of ours, with 24 MB it was a third.

The rules that are the same on both sides are on, and the documents that they keep are compared: the share of words with
a letter, repeated paragraphs, repeated n-grams of five to ten words, `lorem ipsum`. datatrove takes n-grams for equal
that differ only in where a word ends (`f (x)` and `f( x)`), so a document at a limit can be judged differently: the
figure says how many are, and any other difference ends the measurement. Near-duplicates are not compared: datatrove
drops each document that shares one of 14 bands of 8 hashes of 5-grams; parrotflow compares the words of candidates
exactly.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from benchmarks.corpora.python_source import python_documents
from benchmarks.measurements import ROOT, compare, interleave, record
from benchmarks.runs.data_stages import cpu_seconds, params_of_corpus, write_settings
from stages.tokenizer.train import save_trained, train_bpe

REPEATED = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""Words of an n-gram -> the largest share of repeated ones (Gopher)."""

MINIMUM = {"alphabetic_word_share": 0.5}
MAXIMUM = {
    "duplicate_paragraph_share": 0.3,
    "duplicate_paragraph_character_share": 0.2,
    "lorem_ipsum": 0,
    **{f"duplicate_{size}_gram_character_share": share for size, share in REPEATED.items()},
}

RULES = {"prose", *MINIMUM, *MAXIMUM}


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--datatrove", type=Path, metavar="PYTHON")
    parser.add_argument("--megabytes", type=int, default=100, help="of text")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.datatrove is None:
        print("skipped: --datatrove PYTHON names the Python of an environment with datatrove")
        return
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        size, count = write_project(project, 4_000_000 if arguments.quick else arguments.megabytes * 1_000_000)
        sides = {"ours": lambda: ours(project), "datatrove": lambda: theirs(project, arguments.datatrove)}
        seconds = interleave(sides, 1 if arguments.quick else arguments.runs)
        different = judged_differently(project)
    figure = compare(
        f"lines of JSON to tokens, {count:,} documents, {size:.0f} MB of Python, {different} judged differently by the "
        "rules: CPU time",
        seconds["ours"],
        seconds["datatrove"],
        peer_name=f"datatrove {version_of(arguments.datatrove)}",
        unit="s",
        higher_is_better=False,
        libraries=["pyarrow", "rensa", "fastokens"],
    )
    record("chain", [figure], quick=arguments.quick)


def write_project(project: Path, limit: int) -> tuple[float, int]:
    """Two files of rows, a tokenizer and parameters; megabytes and number of documents."""
    documents = list(python_documents(limit))
    (project / "rows").mkdir()
    for part in range(2):
        rows = [json.dumps({"id": one.path, "text": one.text}) + "\n" for one in documents[part::2]]
        (project / f"rows/{part}.jsonl").write_text("".join(rows), encoding="utf-8")
    (project / "data/tokenizer").mkdir(parents=True)
    texts = [document.text for document in documents[:1000]]
    save_trained(train_bpe([texts], 32_768, "gpt2"), project / "data/tokenizer")
    shutil.copyfile(project / "data/tokenizer/tokenizer.json", project / "tokenizer.json")
    params = params_of_corpus("rows", path="id")
    off = {name: False if value is True else None for name, value in params["clean"]["filters"].items()}
    params["clean"]["filters"] = off | {"prose": {"minimum": MINIMUM, "maximum": MAXIMUM}}
    write_settings(project, params)
    return sum(document.size for document in documents) / 1e6, len(documents)


def ours(project: Path) -> float:
    """CPU seconds of our stages, nothing cached."""
    for left in (".parrotflow", "data/documents", "data/clean", "data/tokens"):
        shutil.rmtree(project / left, ignore_errors=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PARROTFLOW_WORKERS": "1"}
    commands = ([sys.executable, "-m", f"stages.{stage}"] for stage in ("collect", "clean", "tokenize"))
    return sum(cpu_seconds(command, project, environment) for command in commands)


def theirs(project: Path, python: Path) -> float:
    """CPU seconds of datatrove's steps."""
    for name in ("kept", "signatures", "buckets", "duplicates", "deduplicated", "tokens", "logs"):
        shutil.rmtree(project / name, ignore_errors=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return cpu_seconds(
        [str(python.absolute()), str(ROOT / "benchmarks/runs/datatrove_chain.py"), str(project)], project, environment
    )


def judged_differently(project: Path) -> int:
    """Count the documents that the rules keep on one side only. Raises SystemExit if n-grams do not explain one."""
    ledger = pd.concat(map(pd.read_parquet, sorted((project / "data/clean/ledger").glob("*.parquet"))))
    by_rule = ledger["verdict"].str.split("_above|_below", regex=True).str[0].isin(RULES)
    kept = set(ledger.loc[~by_rule, "path"])
    files = sorted((project / "kept").glob("*.jsonl.gz"))
    lines = (line for file in files for line in gzip.decompress(file.read_bytes()).splitlines())
    theirs = {json.loads(line)["id"] for line in lines}
    print(f"kept by the rules: {len(kept):,} of {len(ledger):,}; by datatrove's {len(theirs):,}")
    rows = (json.loads(line) for file in (project / "rows").glob("*.jsonl") for line in file.open(encoding="utf-8"))
    different = {row["id"]: row["text"] for row in rows if row["id"] in kept ^ theirs}
    if unexplained := [name for name, text in different.items() if is_repeated(text, "") == is_repeated(text, " ")]:
        raise SystemExit(f"the verdicts differ: {unexplained[:10]}")
    return len(different)


def is_repeated(text: str, separator: str) -> bool:
    """Whether n-grams, compared as their words with this between them, are repeated beyond a limit (as datatrove's)."""
    words = text.split()
    for size, limit in REPEATED.items():
        seen, found, first = set(), 0, 0
        while first + size <= len(words):
            gram = separator.join(words[first : first + size])
            is_known = gram in seen
            seen.add(gram)
            found += is_known * sum(map(len, words[first : first + size]))
            first += size if is_known else 1
        if found / len(text) > limit:
            return True
    return False


def version_of(python: Path) -> str:
    """Of datatrove in that environment."""
    code = "from importlib.metadata import version; print(version('datatrove'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
