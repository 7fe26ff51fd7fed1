from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stages.formats.documents import Document, document_id, read_shard, shard_paths, write_shard
from stages.runtime.cache import CACHE
from stages.tokenizer import train
from stages.tokenizer.train import PATTERNS, WORDS, train_by_reference, train_on_documents
from tests.small_project import folder_bytes

BOUNDARIES = "  \t\n\r12²٣ⅷ'sSlLabé漢.=_\u00a0\u2003\u200b\u0301\x85\x1c\x00"
"""Characters at which patterns cut, or which libraries class differently."""

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text(BOUNDARIES, max_size=60))


def train_bpe(texts: list[str], size: int, pattern: str) -> Tokenizer:
    """As `train_on_documents`, without documents."""
    words = train._cutter(pattern).word_counter()
    words.add_batch(texts)
    return train._merged(words, size, pattern)


@settings(max_examples=150, deadline=None)
@given(texts=TEXTS, pattern=st.sampled_from(sorted(PATTERNS)), size=st.integers(257, 700))
def test_the_bytes_are_those_of_the_reference(texts: list[str], pattern: str, size: int) -> None:
    assert train_bpe(texts, size, pattern).to_str() == train_by_reference([texts], size, pattern).to_str()


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_the_bytes_are_those_of_the_reference_for_real_code(pattern: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(train.__file__).parents[1].rglob("*.py"))]

    assert train_bpe(texts, 3000, pattern).to_str() == train_by_reference([texts], 3000, pattern).to_str()


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(4):
        write_texts(
            folder / f"b{number:02b}.parquet", [f"shard {number} text {one} of the same words\n" for one in "abc"]
        )
    return folder


def write_texts(shard: Path, texts: list[str]) -> None:
    write_shard(shard, [Document(document_id(text), "s", "", "p", "", text) for text in texts])


def all_texts(folder: Path) -> list[str]:
    return [text for shard in shard_paths(folder) for text in read_shard(shard).column("text").to_pylist()]


def counted() -> set[Path]:
    return set((CACHE / WORDS).glob("??/*"))


def test_after_an_edit_one_shard_is_counted_and_the_bytes_are_those_from_nothing(documents: Path) -> None:
    train_on_documents(documents, 2**40, 300, "gpt2")
    before = counted()
    write_texts(documents / "b01.parquet", ["an edited text, and nothing else"])

    edited = train_on_documents(documents, 2**40, 300, "gpt2")

    assert len(before) == 4
    assert len(counted() - before) == 1
    assert edited.to_str() == train_by_reference([all_texts(documents)], 300, "gpt2").to_str()


def test_another_pattern_counts_anew_and_another_size_does_not(documents: Path) -> None:
    train_on_documents(documents, 2**40, 300, "gpt2")
    train_on_documents(documents, 2**40, 280, "gpt2")
    assert len(counted()) == 4

    train_on_documents(documents, 2**40, 280, "gpt4")
    assert len(counted()) == 8


def test_a_shard_of_which_the_limit_takes_a_part_is_counted_in_that_part(documents: Path) -> None:
    texts = all_texts(documents)
    limit = sum(len(text) for text in texts[:5])

    for _ in range(2):
        limited = train_on_documents(documents, limit, 300, "gpt2")
        assert limited.to_str() == train_by_reference([texts[:5]], 300, "gpt2").to_str()
        train_on_documents(documents, 2**40, 300, "gpt2")


def test_an_edit_outside_of_the_counted_documents_counts_and_merges_nothing(
    documents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = sum(len(text) for text in all_texts(documents)[:5])
    before = train_on_documents(documents, limit, 300, "gpt2").to_str()
    write_texts(documents / "b11.parquet", ["an edited text"])
    monkeypatch.setattr(train, "_merged", None)

    assert train_on_documents(documents, limit, 300, "gpt2").to_str() == before
    with pytest.raises(TypeError):
        train_on_documents(documents, limit, 290, "gpt2")


def test_without_the_fast_library_the_reference_trains_the_same_bytes(
    documents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = train_on_documents(documents, 2**40, 300, "digits").to_str()
    kept = folder_bytes(CACHE)
    monkeypatch.setattr(train, "find_spec", lambda _: None)

    assert train_on_documents(documents, 2**40, 300, "digits").to_str() == fast
    assert folder_bytes(CACHE) == kept
