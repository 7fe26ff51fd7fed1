"""The rules of Gopher and C4 on small pages."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.clean.filters.prose import MEASURES
from stages.clean.quality.repetition import DUPLICATE_SIZES, TOP_SIZES, repetition
from tests.clean.measured import features_of
from tests.clean.test_verdicts import ledger

NO_LIMITS: dict[str, dict[str, float]] = {"minimum": {}, "maximum": {}}

ARTICLE = """The harbour of the old town was built to shelter boats that have come a long way.

Most of them carried salt and wood, and a few brought letters with news of the war. "Nobody knew," she wrote, "what
the sea would take." Today it is a quiet place!
"""
MENU = "Home\n- About us\n- Products\n- Contact\n\u2022 Read more...\n\u2022 Read more...\n"
PAGE_OF_CODE = "function f() {\n  return 1;\n}\nPlease enable JavaScript to see this page\n"


def measured(text: str) -> dict[str, float]:
    row = features_of(text, prose=NO_LIMITS)
    return {name: float(row[name]) for name in MEASURES}


def test_an_article_reads_like_prose_and_a_menu_does_not() -> None:
    article, menu = measured(ARTICLE), measured(MENU)

    assert (article["words"], article["sentences"], article["stop_words"]) == (49, 4, 7)
    assert article["stop_word_share"] == pytest.approx(13 / 49)
    assert article["word_length_mean"] == pytest.approx(sum(map(len, ARTICLE.split())) / 49)
    assert article["terminal_punctuation_line_share"] == pytest.approx(2 / 3)
    assert article["bullet_line_share"] == article["ellipsis_line_share"] == article["duplicate_line_share"] == 0.0
    assert menu["bullet_line_share"] == pytest.approx(5 / 6)
    assert menu["ellipsis_line_share"] == pytest.approx(2 / 6)
    assert menu["terminal_punctuation_line_share"] == menu["stop_words"] == 0.0
    assert menu["duplicate_line_share"] == pytest.approx(1 / 6)
    assert menu["alphabetic_word_share"] == pytest.approx(9 / 14)
    assert menu["symbols_per_word"] == pytest.approx(2 / 14)


def test_code_placeholders_and_scripts_are_counted() -> None:
    page = measured(PAGE_OF_CODE + "Lorem ipsum dolor\n")

    assert (page["curly_brackets"], page["lorem_ipsum"]) == (2.0, 1.0)
    assert page["javascript_line_share"] == pytest.approx(1 / 5)
    assert page["short_line_share"] == pytest.approx(2 / 5)


def test_each_measure_of_an_empty_text_is_a_number() -> None:
    assert set(measured("").values()) == {0.0}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, ["kept", "kept", "kept"]),
        ({"minimum": {"stop_words": 2}}, ["kept", "stop_words_below", "stop_words_below"]),
        ({"maximum": {"curly_brackets": 0}}, ["kept", "kept", "curly_brackets_above"]),
        (
            {"minimum": {"words": 14}, "maximum": {"bullet_line_share": 0.8}},
            ["kept", "bullet_line_share_above", "words_below"],
        ),
    ],
)
def test_any_measure_can_have_a_minimum_or_a_maximum(rules: dict[str, dict[str, float]], expected: list[str]) -> None:
    texts = [("s", name, text) for name, text in (("a", ARTICLE), ("m", MENU), ("c", PAGE_OF_CODE))]
    off = {"filters__line_length_mean_maximum": None, "filters__characters_per_token_minimum": None}

    assert list(ledger(texts, filters__prose=NO_LIMITS | rules, **off)["verdict"]) == expected


def test_without_it_the_ledger_has_no_such_columns() -> None:
    assert not set(MEASURES) & features_of("A text.").keys()


def grams(words: list[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]


def characters(gram: tuple[str, ...]) -> int:
    return sum(map(len, gram))


def in_order(words: list[str], size: int) -> int:
    """Gopher's duplicates, a word at a time."""
    seen: set[tuple[str, ...]] = set()
    found = start = 0
    while start <= len(words) - size:
        gram = tuple(words[start : start + size])
        found += characters(gram) if gram in seen else 0
        start += size if gram in seen else 1
        seen.add(gram)
    return found


def of_the_top(words: list[str], size: int) -> int:
    counts = Counter(grams(words, size))
    most = max(counts.values(), default=0)
    return most * max(characters(gram) for gram, count in counts.items() if count == most) if most > 1 else 0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "bb", "ccc", "d"]), max_size=60)
    | st.lists(st.sampled_from(["x", "yy"]), max_size=40)
)
def test_repeated_n_grams_are_those_of_the_definition(words: list[str]) -> None:
    text = " ".join(words)
    found = repetition(text, words)

    expected = {f"top_{size}_gram_character_share": of_the_top(words, size) for size in TOP_SIZES}
    expected |= {f"duplicate_{size}_gram_character_share": in_order(words, size) for size in DUPLICATE_SIZES}
    assert {name: found[name] for name in expected} == pytest.approx(
        {name: count / max(len(text), 1) for name, count in expected.items()}
    )
