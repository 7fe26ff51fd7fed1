"""A mixture: rows of each source in the asked shares of tokens, the same whatever the processes and the first step."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.formats.tokens import TokenStore
from stages.runtime.errors import UserError
from stages.train.compute.data.draws import Draws, Ratios, whole_numbers
from stages.train.compute.data.mixed import document_sources
from stages.train.compute.data.order import AnyOrder, open_order
from stages.train.origins import describe_order, shares
from stages.train.params import TrainParams
from tests.train.small_run import params, write_project

SOURCES = "web", "web", "web", "books", "web", "code"
"""Of the documents, in turn."""

ANNEALED: dict[str, Any] = {
    "weights": {"web": 7, "code": 2, "books": 1},
    "phases": [{"after": 0.8, "weights": {"web": 0.25, "books": 0.75}}],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """40 documents of web, 10 of books and 10 of code, one in between the other."""
    folder = write_project(tmp_path_factory.mktemp("store"), lambda number: SOURCES[number % 6])
    return TokenStore(folder / "data/tokens/train")


def values(mixture: dict[str, Any] | None = None, **changes: Any) -> TrainParams:
    """A section with a mixture, `ANNEALED` with some values changed."""
    return TrainParams.model_validate(params(mixture=ANNEALED | (mixture or {}), **changes))


def source_of_tokens(store: TokenStore) -> list[str]:
    """The source of each token of the store."""
    infos = zip(store.document_infos(), store.document_lengths, strict=True)
    return [info["source"] for info, length in infos for _ in range(length)]


def tokens_trained_on(order: AnyOrder, steps: range) -> Counter[int]:
    """How often each token of the store is a target in some steps."""
    drawn = Counter(int(row) for step in steps for row in order.rows_of_step(step))
    tokens: Counter[int] = Counter()
    for row, times in drawn.items():
        for start, length in order.index.spans(row):
            tokens.update(dict.fromkeys(range(start, start + length), times))
    return tokens


def by_source(store: TokenStore, tokens: Counter[int]) -> dict[str, int]:
    """The tokens of each source, each as often as it was trained on."""
    sources = source_of_tokens(store)
    totals: Counter[str] = Counter()
    for position, times in tokens.items():
        totals[sources[position]] += times
    return dict(totals)


def test_over_10000_steps_each_share_is_within_a_thousandth_of_what_is_asked(store: TokenStore) -> None:
    asked = values(max_steps=10_000, sequence_length=16)
    order = open_order(store, asked)
    of_run: Counter[str] = Counter()
    for steps, wanted in (
        (range(8000), {"web": 0.7, "code": 0.2, "books": 0.1}),
        (range(8000, 10_000), {"web": 0.25, "code": 0.0, "books": 0.75}),
    ):
        trained = by_source(store, tokens_trained_on(order, steps))
        for source, share in wanted.items():
            assert trained.get(source, 0) / sum(trained.values()) == pytest.approx(share, abs=0.001)
        of_run.update(trained)
    for source, found in shares(order).items():
        assert found.tokens == of_run[source]
        assert found.share == pytest.approx(found.tokens / sum(of_run.values()), abs=1e-6)


@settings(max_examples=30)
@given(after=st.integers(1, 11))
def test_a_phase_begins_with_the_step_after_the_one_that_is_named(store: TokenStore, after: int) -> None:
    phases = [{"after": after, "weights": {"books": 1}}]
    asked = values({"weights": {"web": 1}, "phases": phases})
    order, sources = open_order(store, asked), source_of_tokens(store)
    for step in range(asked.max_steps):
        rows = order.rows_of_step(step)
        assert len(rows) == asked.global_batch_size
        found = {sources[start] for row in rows for start, _ in order.index.spans(int(row))}
        assert found == {"web" if step < after else "books"}


def test_other_weights_and_other_sources_leave_the_order_within_a_source_as_it_is(store: TokenStore) -> None:
    def web(**mixture: Any) -> list[int]:
        order = open_order(store, values(mixture | {"phases": []}, max_steps=60))
        sources = source_of_tokens(store)
        rows = [int(row) for step in range(60) for row in order.rows_of_step(step)]
        starts = [order.index.spans(row)[0].start for row in rows]
        return [start for start in starts if sources[start] == "web"]

    few, many = web(weights={"web": 0.1, "books": 0.9}), web(weights={"code": 0.3, "web": 0.7})
    assert 0 < len(few) < len(many)
    assert many[: len(few)] == few


def test_documents_without_a_weight_are_left_out_and_a_line_says_so(store: TokenStore) -> None:
    sizes = Counter(source_of_tokens(store))
    mixture = {"weights": {"code": 1, "web": 0}, "phases": [{"after": 6, "weights": {"books": 1, "code": 1}}]}
    order = open_order(store, values(mixture))
    *of_sources, left = describe_order(order, store)
    assert left == f"mixture: 40 documents ({sizes['web']:,} tokens) are left out: they have no weight"
    assert [line.split(":")[1] for line in of_sources] == [" books", " code"]
    assert set(by_source(store, tokens_trained_on(order, range(12)))) == {"books", "code"}


@pytest.mark.parametrize(
    ("weights", "changes", "said"),
    [
        ({"web": 1, "boks": 1}, {}, "data/tokens/train has no source `boks`. It has web ("),
        ({"web": 1, "books": 1, "code": 1, "*": 1}, {}, "data/tokens/train has no other sources. It has web ("),
        (
            {"web": 1, "books": 1},
            {"sequence_length": 1000},
            "are fewer than one sequence (train.sequence_length = 1000); use shorter sequences, or remove it",
        ),
    ],
)
def test_a_source_that_gives_no_row_is_refused(
    store: TokenStore, weights: dict[str, float], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        open_order(store, values({"weights": weights, "phases": []}, **changes))
    assert str(caught.value).startswith("params.yaml: train.mixture: ")
    assert said in str(caught.value)


class CountedName(str):
    """A source's name that counts how often it is compared."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)


def test_the_cost_of_40000_sources_is_that_of_their_documents(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [CountedName(f"s{number % 40_000}") for number in range(80_000)]
    monkeypatch.setattr(store, "document_infos", lambda: ({"source": name} for name in names))

    known, numbers = document_sources(store)

    assert [known[number] for number in numbers[-40_000:]] == names[-40_000:]
    assert CountedName.comparisons < 5 * len(names)


rates = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=9).filter(any)


@given(rates=rates, draws=st.integers(0, 300))
def test_each_source_is_within_half_a_row_for_each_halving_of_what_is_asked(rates: list[float], draws: int) -> None:
    counts = Ratios(whole_numbers(rates)).counts(draws)
    asked = np.array(rates) / sum(rates) * draws
    halvings = (len(rates) - 1).bit_length()
    assert sum(counts) == draws
    assert np.abs(np.array(counts) - asked).max() <= halvings / 2 + 1e-6
    assert all(count == 0 for count, rate in zip(counts, rates, strict=True) if rate == 0)


@given(first=rates, second=rates, third=rates, lengths=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_each_draw_takes_the_next_one_of_its_source_through_all_phases(
    first: list[float], second: list[float], third: list[float], lengths: tuple[int, int]
) -> None:
    sources = min(map(len, (first, second, third)))
    phases = tuple(Ratios(whole_numbers([*each[: sources - 1], 1.0])) for each in (first, second, third))
    draws = Draws((0, lengths[0], sum(lengths)), phases)
    taken = [0] * sources
    for draw in range(120):
        assert draws.counts(draw) == taken
        source, number = draws.source(draw)
        assert number == taken[source]
        taken[source] += 1
    for start, phase in zip(draws.starts, phases, strict=True):
        assert draws.source(start)[0] == phase.source(0)[0]
