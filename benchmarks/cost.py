"""What the data stages cost: prices of CPU time fitted to corpora of several sizes, and checked at another one.

    python -m benchmarks.cost [--quick]

Steps: write a corpus of Python source as files, which no cache knows; run collect, clean, tokenizer and tokenize on it,
each as a process of its own; delete it; do so for every size. Then fit three prices to each stage: its start-up, a GB
of text and a million documents, none below zero, by least squares of the relative errors. The prices are checked at a
corpus that they were not fitted to. Of tokenize the text and the documents are those that `clean` kept. The tokenizer
is trained on the same number of bytes of each corpus (`training_bytes`), so it has no price, and its seconds are
recorded as they are.

Beyond what is installed here, the source is repeated with some letters exchanged, others in each copy: documents of the
same shape whose words are new. So no copy is a near-duplicate, and words repeat less often than in as much real text.

Seconds are the processor's, workers and start-up included: other work on the machine hardly changes them.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from benchmarks.corpora.python_source import python_documents
from benchmarks.measurements import ROOT, Measurement, compare, record
from benchmarks.runs.data_stages import cpu_seconds, params_of_corpus, write_settings
from stages.formats.reports import REPORTS, read_json

STAGES = ("collect", "clean", "tokenizer", "tokenize")
PRICED = ("collect", "clean", "tokenize")
PRICES = ("start-up", "a GB of text", "a million documents")
LIBRARIES = ("pyarrow", "rensa", "fastokens")

EXCHANGED = "bgjkmnpqtuvxyz"
"""Letters that are exchanged in copies. Those of `def`, `class`, `for` and `while` stay: `clean` looks for them."""


@dataclass(frozen=True)
class Corpus:
    """A corpus to measure."""

    megabytes: int
    document_bytes: int = 10**9
    """Files are cut into documents of this size."""


FITTED = (Corpus(50, 1_200), Corpus(150), Corpus(150, 1_200), Corpus(300), Corpus(900), Corpus(5_000))
"""Large enough that `collect` starts workers. One of 50 MB in whole files is done before: with it the start-up of
`collect` came out as 0, and the check 31 % too high instead of 5 %."""

CHECKED = Corpus(2_000)
QUICK = (Corpus(4), Corpus(4, 1_200), Corpus(8)), Corpus(12)


@dataclass(frozen=True)
class Cost:
    """What was measured of a corpus: how large it is, what `clean` kept of it, and the CPU seconds of each stage."""

    corpus: Corpus
    gigabytes: float
    documents: int
    gigabytes_kept: float
    documents_kept: int
    seconds: dict[str, float]

    def quantities(self, stage: str) -> tuple[float, float, float]:
        """What `PRICES` are multiplied with."""
        if stage == "tokenize":
            return 1.0, self.gigabytes_kept, self.documents_kept / 1e6
        return 1.0, self.gigabytes, self.documents / 1e6

    @property
    def name(self) -> str:
        """Its size in words."""
        return f"{self.gigabytes * 1000:,.0f} MB in {self.documents:,} documents"


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four small corpora; nothing is recorded")
    quick = parser.parse_args().quick
    fitted, checked = QUICK if quick else (FITTED, CHECKED)
    *costs, check = [measure(corpus) for corpus in (*fitted, checked)]
    record("cost", list(figures(costs, check)), quick=quick)


def measure(corpus: Corpus) -> Cost:
    """Write a corpus, run the data stages on it from nothing, and delete it."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        size, count = 0, 0
        for name, text in texts(corpus):
            path = project / "corpus" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
            size += len(text.encode("utf-8"))
            count += 1
        params = params_of_corpus("corpus")
        params["collect"]["shard_bytes"] = 8_000_000
        params["tokenizer"] |= {"vocabulary_size": 32_768, "training_bytes": 20_000_000}
        write_settings(project, params)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        seconds = {
            stage: cpu_seconds([sys.executable, "-m", f"stages.{stage}"], project, environment) for stage in STAGES
        }
        kept = read_json(project / REPORTS / "clean.json")["kept"]
    cost = Cost(corpus, size / 1e9, count, kept["bytes"] / 1e9, kept["documents"], seconds)
    print(f"{cost.name}, {kept['bytes'] / size:.0%} kept: {seconds}", flush=True)
    return cost


def texts(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """Names and contents of the files. Raises SystemExit where the corpus asks for more copies than differ."""
    left = corpus.megabytes * 1_000_000
    for copy in range(len(EXCHANGED)):
        exchange = str.maketrans(EXCHANGED, EXCHANGED[copy:] + EXCHANGED[:copy])
        for document in python_documents(10**12):
            text = document.text.translate(exchange) if copy else document.text
            for start in range(0, len(text), corpus.document_bytes):
                part = text[start : start + corpus.document_bytes]
                left -= len(part.encode("utf-8"))
                if left < 0:
                    return
                yield f"{copy}/{document.path.removesuffix('.py')}-{start}.py", part
    raise SystemExit(f"{corpus.megabytes} MB: more than {len(EXCHANGED)} copies of what is installed")


def fitted_prices(costs: list[Cost], stage: str) -> list[float]:
    """Seconds for each of `PRICES`."""
    seconds = np.array([cost.seconds[stage] for cost in costs])
    quantities = np.array([cost.quantities(stage) for cost in costs])
    prices, _ = nnls(quantities / seconds[:, None], np.ones(len(costs)))
    return [float(price) for price in prices]


def figures(costs: list[Cost], check: Cost) -> Iterator[Measurement]:
    """Each stage's prices, how well they foretell the check, and the seconds that were measured."""
    for stage in PRICED:
        prices = fitted_prices(costs, stage)
        for name, price in zip(PRICES, prices, strict=True):
            bound = "" if price else ", at the bound"
            yield replace(figure(f"{stage}: price of {name}{bound}", price), runs=len(costs))
        foretold = float(np.dot(prices, check.quantities(stage)))
        yield figure(f"{stage}: prices / measured, {check.name}", foretold / check.seconds[stage], unit="")
    for cost in (*costs, check):
        kept = f"{cost.gigabytes_kept / cost.gigabytes:.0%} kept"
        for stage in STAGES:
            yield figure(f"{stage}: {cost.name}, {kept}", cost.seconds[stage])


def figure(name: str, value: float, unit: str = "s") -> Measurement:
    """One, without a peer."""
    return compare(name, [value], None, unit=unit, higher_is_better=False, libraries=LIBRARIES)


if __name__ == "__main__":
    main()
