from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.clean import words as words_module
from stages.clean.words import (
    PERMUTATIONS,
    SIGNATURES,
    WordHashes,
    cached_words,
    distinct,
    hashed,
    read_band,
    word_hashes,
    word_list,
)
from stages.formats.documents import write_shard
from tests.small_project import document

RUSSIAN = "\u043f\u0440\u0438\u0432\u0435\u0442"
HINDI = "\u0928\u092e\u0938\u094d\u0924\u0947"

ANY_CHARACTER = st.characters(exclude_categories=["Cs"])
MIXED_TEXT = st.one_of(
    st.text(ANY_CHARACTER),
    # Words beside each other, in Latin, Chinese, Japanese, Korean (also in parts) and Thai, with loose accents.
    st.text(st.sampled_from("aB_9 .\0\u00e9\u0301\u0316\u4f60\u597d\u306e\ud55c\u1112\u1161\u0e01\u0e34\U00020000")),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(x): return x", ["def", "f", "x", "return", "x"]),
        ("\u00e9t\u00e9_1 x-y", ["\u00e9t\u00e9_1", "x", "y"]),
        ("e\u0301te\u0301", ["\u00e9t\u00e9"]),
        (f"{RUSSIAN}, {RUSSIAN}!", [RUSSIAN, RUSSIAN]),
        (HINDI, [HINDI]),
        ("x=\u4f60\u597d\u4e16\u754c1", ["x", "\u4f60\u597d", "\u597d\u4e16", "\u4e16\u754c", "1"]),
        ("\u4f60", ["\u4f60"]),
        ("()", []),
    ],
)
def test_words_are_of_any_script(text: str, expected: list[str]) -> None:
    assert word_list(text) == [word.encode() for word in expected]


@given(text=st.text(st.characters(max_codepoint=127)))
def test_text_in_ascii_is_cut_as_any_other(text: str) -> None:
    assert word_list(text) == word_list(text + " \u4f60")[:-1]


@given(texts=st.lists(MIXED_TEXT), batch_bytes=st.sampled_from([1, 20, 2**20]))
def test_each_text_has_the_hashes_of_its_distinct_words(texts: list[str], batch_bytes: int) -> None:
    expected = [sorted(set(hashes_of(word_list(text)).tolist())) for text in texts]

    with patch.object(words_module, "BATCH_BYTES", batch_bytes):
        hashes = [distinct(hashes).tolist() for hashes in word_hashes(texts)]

    assert hashes == expected


def test_a_word_of_a_megabyte_is_one_word() -> None:
    text = "a" * 1_000_000 + " b"

    (hashes,) = word_hashes([text])

    assert hashes.tolist() == hashes_of(text.encode().split()).tolist()


NO_ZERO = st.binary(min_size=1, max_size=80).map(lambda word: word.replace(b"\0", b"1"))
SHORT = st.text("ab", min_size=1, max_size=3).map(str.encode)


@given(words=st.lists(st.one_of(NO_ZERO, SHORT)), at_once=st.sampled_from([80, 2**16]))
def test_words_have_the_same_hash_where_they_are_the_same(words: list[bytes], at_once: int) -> None:
    with patch.object(words_module, "HASHED_BYTES", at_once):
        hashes = hashes_of(words).tolist()

    assert [hashes.index(one) for one in hashes] == [words.index(word) for word in words]


def test_hashes_of_words_that_differ_in_a_few_bytes_are_spread_evenly() -> None:
    hashes = hashes_of([str(number).encode() for number in range(1_000_000)])

    assert len(np.unique(hashes)) == len(hashes)
    for shift in (0, 16, 32, 48):
        counts = np.bincount((hashes >> np.uint64(shift)) & np.uint64(0xFF), minlength=256)
        assert counts.std() < 1.3 * np.sqrt(counts.mean())


def hashes_of(words: list[bytes]) -> WordHashes:
    """Of words one after the other."""
    ends = np.cumsum(np.array(list(map(len, words)), dtype=np.int64))
    return hashed(b"".join(words), ends - np.array(list(map(len, words)), dtype=np.int64), ends)


def test_a_band_is_a_part_of_the_signatures_and_nothing_else_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_shard(Path("b.parquet"), [document(text) for text in ("one two three", "four five", "one two three")])
    (folder,) = cached_words([Path("b.parquet")])
    whole = np.fromfile(folder / SIGNATURES, np.uint32).reshape(PERMUTATIONS, 3)
    assert (whole[:, 0] == whole[:, 2]).all()
    assert (whole[:, 0] != whole[:, 1]).any()

    (folder / SIGNATURES).rename("signatures")
    for file in folder.iterdir():
        file.unlink()
    Path("signatures").rename(folder / SIGNATURES)
    assert (read_band(folder, 16, 8) == whole[16:24]).all()
