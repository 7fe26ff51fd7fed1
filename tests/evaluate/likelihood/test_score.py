"""The loss of every token, under its own context; and the metrics of all documents, of each source and each length."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, PhiConfig, PhiForCausalLM, PreTrainedModel

from stages.evaluate.likelihood.documents import ScoringPlan, Tokens, WindowSizes, scored_per_bucket
from stages.evaluate.likelihood.report import compare, held_out_metrics, of_largest_sources, rows_by_name
from stages.evaluate.likelihood.score import Scores, score_batches
from stages.formats.tokens import TokenStore
from tests.evaluate.likelihood.definition import one_token_at_a_time

SIZES: dict[str, Any] = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.5}


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=16, n_layer=2, n_head=2, **SIZES))


SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}


def phi() -> PreTrainedModel:
    """Its logits have a bias, so they are left to transformers."""
    model = PhiForCausalLM(PhiConfig(**SHAPE, **SIZES))
    torch.nn.init.normal_(model.lm_head.bias)
    return model


@pytest.mark.parametrize("architecture", [gpt2, phi])
@pytest.mark.parametrize(("context_length", "stride"), [(32, 24), (20, 20), (16, 1)])
def test_the_loss_is_that_of_each_token_under_its_own_context(
    project: Path, architecture: Callable[[], PreTrainedModel], context_length: int, stride: int
) -> None:
    torch.manual_seed(1)
    model = architecture().eval()
    store = TokenStore(project / "data/tokens/validation")
    chosen = (0, store.manifest.documents - 1)
    documents = [store.document(number) for number in chosen]
    lengths = np.array([len(document) for document in documents])
    plan = ScoringPlan(
        Tokens(np.concatenate(documents), lengths, store.manifest.eos_id), WindowSizes(context_length, stride), 5
    )

    losses = score_batches(model, plan)

    assert lengths.max() > 32
    read = [[store.manifest.eos_id, *document.tolist()] for document in documents]
    defined = [list(one_token_at_a_time(model, ids, context_length, stride)) for ids in read]
    assert losses.documents == pytest.approx([sum(nats for _, nats in found) for found in defined], rel=1e-5)
    at_position = np.zeros((2, context_length))  # of so small a context each position is a bucket
    for position, nats in itertools.chain.from_iterable(defined):
        at_position[:, position] += (nats, 1)
    np.testing.assert_allclose(losses.positions, at_position[0], rtol=1e-5)
    np.testing.assert_array_equal(scored_per_bucket(plan), at_position[1])


def scores(seed: int = 0, documents: int = 40) -> Scores:
    """Documents of two sources, and of one more that has a single document."""
    random = np.random.default_rng(seed)
    tokens = random.integers(5, 3000, size=documents)
    nats = tokens * random.normal(3.0, 0.5, size=documents)
    sources = ["alone", *random.choice(["a", "b"], size=documents - 1).tolist()]
    return Scores(nats=nats, tokens=tokens, bytes=tokens * 4, sources=sources)


@given(tokens=st.lists(st.integers(1, 10**8), min_size=1))
def test_lengths_are_grouped_by_powers_of_two_under_names_that_sort_as_numbers(tokens: list[int]) -> None:
    lengths = np.array(tokens)
    names = Scores(nats=lengths * 1.0, tokens=lengths, bytes=lengths, sources=["s"] * len(tokens)).lengths

    for count, name in zip(tokens, names, strict=True):
        first, last = map(int, name.split("-"))
        assert first <= count <= last == 2 * first - 1
    assert [int(name.split("-")[0]) for name in sorted(names)] == sorted(int(name.split("-")[0]) for name in names)


def test_the_parts_of_a_set_make_up_the_whole_and_each_has_its_interval() -> None:
    found = scores()

    metrics = held_out_metrics(found, 0.0, {})

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
            assert (interval is None) == (list(names).count(name) < 10)
            assert interval is None or interval[0] <= values[name] <= interval[1]
    assert metrics.interval_95.bits_per_byte_per_source["alone"] is None


def test_the_report_does_not_grow_with_the_number_of_sources_and_each_document_is_grouped_once() -> None:
    names = [f"source {number % 3000:04d}" for number in range(6000)]
    columns = np.stack([np.arange(6000.0), np.ones(6000), np.arange(6000.0) % 3000 + 1], axis=1)

    parts = rows_by_name(columns, names)

    assert list(parts) == sorted(set(names))
    assert sum(map(len, parts.values())) == 6000
    assert parts["source 0007"][:, 0].tolist() == [7, 3007]
    assert list(of_largest_sources(parts)) == [f"source {number:04d}" for number in range(2999, 2949, -1)]


def test_what_two_models_have_in_common_does_not_widen_the_interval_of_their_difference() -> None:
    theirs = scores()
    ours = Scores(theirs.nats - 0.01 * math.log(2) * theirs.bytes, theirs.tokens, theirs.bytes, theirs.sources)

    compared = compare(ours, theirs)

    assert compared.difference == pytest.approx(-0.01)
    assert compared.difference_interval_95 == pytest.approx((-0.01, -0.01))
    alone = held_out_metrics(theirs, 0.0, {})
    assert compared.bits_per_byte == alone.bits_per_byte
    low, high = alone.interval_95.bits_per_byte
    assert high - low > 0.05


@pytest.mark.parametrize("documents", [1, 9])
def test_fewer_than_ten_documents_have_no_interval(documents: int) -> None:
    few = scores(documents=documents)

    metrics = held_out_metrics(few, 0.0, {"base": few})

    assert metrics.interval_95.bits_per_byte is metrics.interval_95.loss is metrics.interval_95.perplexity is None
    assert metrics.compared["base"].difference_interval_95 is None
