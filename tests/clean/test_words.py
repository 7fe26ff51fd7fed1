import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.clean.words import WordKind, word_list, word_sets

RUSSIAN = "\u043f\u0440\u0438\u0432\u0435\u0442"
HINDI = "\u0928\u092e\u0938\u094d\u0924\u0947"


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
    assert word_list(text, "unicode") == [word.encode() for word in expected]


def test_codeparrots_words_are_runs_of_ascii_letters_digits_and_underscores() -> None:
    assert word_list("\u00e9t\u00e9_1 x-y", "ascii") == [b"t", b"_1", b"x", b"y"]


@given(text=st.text(st.characters(max_codepoint=127)))
def test_both_kinds_cut_ascii_alike(text: str) -> None:
    assert word_list(text, "unicode") == word_list(text, "ascii")


@pytest.mark.parametrize("kind", ["unicode", "ascii"])
@given(chunks=st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])))), skipped=st.integers(0, 3))
def test_the_words_of_a_column_are_those_of_its_texts(kind: WordKind, chunks: list[list[str]], skipped: int) -> None:
    column = pa.chunked_array([pa.array(chunk, pa.string()).slice(skipped) for chunk in chunks], pa.string())

    assert word_sets(column, kind) == [set(word_list(text, kind)) for text in column.to_pylist()]
