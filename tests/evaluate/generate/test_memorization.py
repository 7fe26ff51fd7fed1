from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.evaluate.generate import memorization
from stages.evaluate.generate.memorization import longest_shared
from stages.formats.tokens import TokenStore
from tests.formats.test_tokens import write_store

FEW_WORDS = st.lists(st.integers(1, 4), max_size=12)


def by_trying_all(documents: list[list[int]], text: list[int]) -> int:
    def passages(ids: list[int]) -> set[tuple[int, ...]]:
        return {tuple(ids[a:b]) for a in range(len(ids)) for b in range(a + 1, len(ids) + 1)}

    stored = {passage for document in documents for passage in passages(document)}
    return max(map(len, stored & passages(text)), default=0)


@settings(max_examples=60)
@given(
    shards=st.lists(st.lists(FEW_WORDS, max_size=5), max_size=3),
    texts=st.lists(FEW_WORDS, max_size=5),
    at_once=st.sampled_from([1, 3, 100]),
)
def test_the_longest_shared_passage_is_the_one_that_trying_all_finds(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[list[int]]], texts: list[list[int]], at_once: int
) -> None:
    store = TokenStore(write_store(tmp_path_factory.mktemp("s") / "store", shards))
    documents = [document for shard in shards for document in shard]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(memorization, "BATCH_TOKENS", at_once)
        assert longest_shared(store, texts) == [by_trying_all(documents, text) for text in texts]


def test_a_passage_over_the_end_of_a_document_is_none(tmp_path: Path) -> None:
    store = TokenStore(write_store(tmp_path / "store", [[[1, 2], [3, 4]]]))

    assert longest_shared(store, [[1, 2, 3, 4], [4], [7], []]) == [2, 1, 0, 0]


def test_workers_scan_the_parts_of_the_store_and_the_progress_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stages.runtime.workers.POOL_START_SECONDS", 0.0)
    monkeypatch.setattr("stages.runtime.workers.LINE_SECONDS", 0.0)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    monkeypatch.setattr(memorization, "BATCH_TOKENS", 4)
    store = TokenStore(write_store(tmp_path / "store", [[[1, 2, 3]], [[4, 5], [6, 7, 8, 9]]]))

    assert longest_shared(store, [[2, 3], [6, 7, 8], [10, 9], [5, 6], []]) == [2, 3, 1, 1, 0]
    assert capsys.readouterr().out.startswith("passages of the training data: 1 of 3 parts")
