"""What the data stages cost: prices of CPU time fitted to corpora of several sizes, and checked at a larger one.

    python -m benchmarks.cost [--quick]

A stage costs its start-up, a price per GB of text and a price per million documents, none below zero: least squares of
the relative errors. Each corpus is Python source as files, which no cache knows; beyond what is installed here it is
repeated, each copy edited in every document. The tokenizer is trained on one size at most (`training_bytes`), so it has
no price. Seconds are the processor's, workers and start-up included: other work on the machine hardly changes them.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from benchmarks.corpora.python_source import python_documents
from benchmarks.edit import run_stage, write_settings
from benchmarks.measurements import Measurement, compare, record

PRICED = ("collect", "clean", "tokenize")
PRICES = ("start-up", "a GB of text", "a million documents")
LIBRARIES = ("pyarrow", "rensa", "fastokens")


@dataclass(frozen=True)
class Corpus:
    """A corpus to measure."""

    megabytes: int
    document_bytes: int = 10**9
    """Files are cut into documents of this size."""


FITTED = (Corpus(50), Corpus(50, 1_200), Corpus(150), Corpus(300), Corpus(150, 1_200))
CHECKED = Corpus(900)
QUICK = (Corpus(4), Corpus(4, 1_200), Corpus(8)), Corpus(12)


@dataclass(frozen=True)
class Cost:
    """What was measured of a corpus: its size, and the CPU seconds of each stage."""

    gigabytes: float
    documents: int
    seconds: dict[str, float]

    @property
    def quantities(self) -> tuple[float, float, float]:
        """What `PRICES` are multiplied with."""
        return 1.0, self.gigabytes, self.documents / 1e6


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    fitted, checked = QUICK if quick else (FITTED, CHECKED)
    costs, check = [measure(corpus) for corpus in fitted], measure(checked)
    record("cost", [figure for stage in PRICED for figure in figures(stage, costs, check)], quick=quick)


def measure(corpus: Corpus) -> Cost:
    """Write a corpus, run the data stages on it from nothing, and delete it."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        size, count = 0, 0
        for name, text in texts(corpus):
            place = project / "corpus" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8", newline="")
            size += len(text.encode("utf-8"))
            count += 1
        write_settings(project, training_bytes=20_000_000)
        cost = Cost(size / 1e9, count, {stage: run_stage(project, stage) for stage in (*PRICED[:2], "tokenizer")})
        cost.seconds["tokenize"] = run_stage(project, "tokenize")
    print(f"{cost.gigabytes:.3f} GB, {count:,} documents: {cost.seconds}", flush=True)
    return cost


def texts(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """Names and contents of the files."""
    left, copy = corpus.megabytes * 1_000_000, 0
    while True:
        for document in python_documents(10**12):
            text = f"COPY = {copy}\n{document.text.replace('self', f'self_{copy}')}" if copy else document.text
            for start in range(0, len(text), corpus.document_bytes):
                part = text[start : start + corpus.document_bytes]
                left -= len(part.encode("utf-8"))
                if left < 0:
                    return
                yield f"{copy}/{document.path.removesuffix('.py')}-{start}.py", part
        copy += 1


def fitted_prices(costs: list[Cost], stage: str) -> list[float]:
    """Seconds for each of `PRICES`."""
    seconds = np.array([cost.seconds[stage] for cost in costs])
    quantities = np.array([cost.quantities for cost in costs])
    prices, _ = nnls(quantities / seconds[:, None], np.ones(len(costs)))
    return [float(price) for price in prices]


def figures(stage: str, costs: list[Cost], check: Cost) -> Iterator[Measurement]:
    """The stage's prices, and what the check took beside what they say."""
    prices = fitted_prices(costs, stage)
    for name, price in zip(PRICES, prices, strict=True):
        fitted = compare(f"{stage}: {name}", [price], None, unit="s", higher_is_better=False, libraries=LIBRARIES)
        yield replace(fitted, runs=len(costs))
    yield compare(
        f"{stage}: {check.gigabytes * 1000:,.0f} MB in {check.documents:,} documents",
        [check.seconds[stage]],
        [float(np.dot(prices, check.quantities))],
        peer_name="by these prices",
        unit="s",
        higher_is_better=False,
        libraries=LIBRARIES,
    )


if __name__ == "__main__":
    main()
