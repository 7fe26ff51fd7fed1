"""Metrics of all documents, of each source, of each length, and of two models on the same documents."""

import gzip
import lzma
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.evaluate.likelihood.report import Bootstrap, compare, compress, held_out_metrics
from stages.evaluate.likelihood.score import Scores

BOOTSTRAP = Bootstrap(resamples=500, seed=0)
COMPRESSED = {"gzip_9": 2.0, "xz_9": 1.5}


def scores(seed: int = 0, documents: int = 40) -> Scores:
    """Documents of two sources, and of one more that has a single document."""
    random = np.random.default_rng(seed)
    tokens = random.integers(5, 3000, size=documents)
    nats = tokens * random.normal(3.0, 0.5, size=documents)
    sources = ["alone", *random.choice(["a", "b"], size=documents - 1).tolist()]
    return Scores(nats=nats, tokens=tokens, bytes=tokens * 4, sources=sources)


@given(tokens=st.lists(st.integers(1, 10**6 - 1), min_size=1))
def test_lengths_are_grouped_by_powers_of_two_under_names_that_sort_as_numbers(tokens: list[int]) -> None:
    lengths = np.array(tokens)
    names = Scores(nats=lengths * 1.0, tokens=lengths, bytes=lengths, sources=["s"] * len(tokens)).lengths

    for count, name in zip(tokens, names, strict=True):
        first, last = map(int, name.split("-"))
        assert first <= count <= last == 2 * first - 1
    assert [int(name.split("-")[0]) for name in sorted(names)] == sorted(int(name.split("-")[0]) for name in names)


def test_the_parts_of_a_set_make_up_the_whole_and_each_has_its_interval() -> None:
    found = scores()

    metrics = held_out_metrics(found, COMPRESSED, {}, BOOTSTRAP)

    for values, intervals, names in (
        (metrics.bits_per_byte_per_source, metrics.interval_95.bits_per_byte_per_source, found.sources),
        (metrics.bits_per_byte_per_length, metrics.interval_95.bits_per_byte_per_length, found.lengths),
    ):
        assert set(values) == set(intervals) == set(names)
        size = {name: sum(int(n) for n, own in zip(found.bytes, names, strict=True) if own == name) for name in values}
        assert sum(values[name] * size[name] for name in values) / metrics.bytes == pytest.approx(
            metrics.bits_per_byte, rel=1e-5
        )
        for name, interval in intervals.items():
            assert interval is None or interval[0] <= values[name] <= interval[1]
    assert metrics.interval_95.bits_per_byte_per_source["alone"] is None


def test_what_two_models_have_in_common_does_not_widen_the_interval_of_their_difference() -> None:
    theirs = scores()
    ours = Scores(theirs.nats - 0.01 * math.log(2) * theirs.bytes, theirs.tokens, theirs.bytes, theirs.sources)

    compared = compare(ours, theirs, BOOTSTRAP)

    assert compared.difference == pytest.approx(-0.01)
    assert compared.difference_interval_95 == pytest.approx((-0.01, -0.01))
    alone = held_out_metrics(theirs, COMPRESSED, {}, BOOTSTRAP)
    assert compared.bits_per_byte == alone.bits_per_byte
    low, high = alone.interval_95.bits_per_byte
    assert high - low > 0.05


def test_a_model_that_is_better_on_some_documents_and_worse_on_others_has_an_interval_around_zero() -> None:
    theirs = scores()
    by_turns = np.where(np.arange(40) % 2, 20.0, -20.0)
    ours = Scores(theirs.nats + by_turns, theirs.tokens, theirs.bytes, theirs.sources)

    low, high = compare(ours, theirs, BOOTSTRAP).difference_interval_95

    assert low < 0 < high


def test_a_single_document_has_no_interval() -> None:
    one = scores(documents=1)

    metrics = held_out_metrics(one, COMPRESSED, {"base": one}, BOOTSTRAP)

    assert metrics.interval_95.bits_per_byte is metrics.interval_95.loss is metrics.interval_95.perplexity is None
    assert metrics.compared["base"].difference_interval_95 is None


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1).filter(any))
def test_the_documents_are_compressed_as_one_stream(texts: list[str]) -> None:
    data = "".join(texts).encode()

    sizes = compress(texts)

    assert sizes["gzip_9"] == pytest.approx(8 * len(gzip.compress(data, 9)) / len(data))
    assert sizes["xz_9"] == pytest.approx(8 * len(lzma.compress(data, preset=9)) / len(data))
