# ruff: noqa: RUF001 - letters of other scripts
"""Languages of sentences that were written for this test, and the rules of Gopher and C4 on small pages."""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.clean.filtering import DocumentText
from stages.clean.filters.prose import (
    BULLETS,
    DUPLICATE_SIZES,
    ELLIPSES,
    ENDS_OF_SENTENCES,
    MEASURES,
    STOP_WORDS,
    TOP_SIZES,
    NumberedWords,
    Prose,
    repetition,
)
from tests.clean.test_ledger import features_of
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
    assert article["terminal_punctuation_line_share"] == pytest.approx(2 / 3)
    assert menu["bullet_line_share"] == pytest.approx(5 / 6)
    assert menu["ellipsis_line_share"] == pytest.approx(2 / 6)
    assert menu["symbols_per_word"] == pytest.approx(2 / 14)


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


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(["a", "bb", "ccc", "d"]), max_size=60)
    | st.lists(st.sampled_from(["x", "yy"]), max_size=40)
)
def test_repeated_n_grams_are_those_of_the_definition(words: list[str]) -> None:
    text = " ".join(words)
    found = repetition(text, NumberedWords(words))

    expected = {f"top_{size}_gram_character_share": of_the_top(words, size) for size in TOP_SIZES}
    expected |= {f"duplicate_{size}_gram_character_share": in_order(words, size) for size in DUPLICATE_SIZES}
    assert {name: found[name] for name in expected} == pytest.approx(
        {name: count / max(len(text), 1) for name, count in expected.items()}
    )


WORDS = ["the", "The", "OF", "wiTh", "\u212aeep", "x1", "\u2167", "\u00b2", "\u24b6", "\u03a3", "javaScript", "{}"]
SIGNS = ["-", "*", "\u2022", "a...", "\u2026", "...", ".", '!?")', "'\u201d", "\u3002", "\u3002\uff01", "\u0964."]
SPACES = [" ", "\t", "\n", "\n\n", "\n\n\n", "\r\n", "\v", "\x1c", "\x85", "\u2028", "\xa0"]
PARTS = st.sampled_from([*WORDS, *SIGNS, *SPACES, *SPACES])


def of_the_definitions(text: str) -> dict[str, float]:
    """Gopher's and C4's counts, a word and a line at a time."""
    words, lines = text.split(), [line.strip() for line in text.splitlines() if line.strip()]
    stops = Counter(word for word in text.lower().split() if word in STOP_WORDS)
    ends = tuple(ENDS_OF_SENTENCES)
    of_lines = {
        "bullet_line_share": [line.startswith(tuple(BULLETS)) for line in lines],
        "ellipsis_line_share": [line.endswith(ELLIPSES) for line in lines],
        "terminal_punctuation_line_share": [line.endswith(ends) and not line.endswith(ELLIPSES) for line in lines],
        "short_line_share": [len(line.split()) < 3 for line in lines],
        "javascript_line_share": ["javascript" in line.lower() for line in lines],
    }
    parts = {"line": re.split(r"\n+", text.strip()), "paragraph": re.split(r"\n{2,}", text.strip())}
    return {
        "words": len(words),
        "word_length_mean": sum(map(len, words)) / max(len(words), 1),
        "alphabetic_word_share": sum(any(map(str.isalpha, word)) for word in words) / max(len(words), 1),
        "stop_words": len(stops),
        "stop_word_share": stops.total() / max(len(words), 1),
        "sentences": len(re.findall(r"[.!?]+[\"')\u201d\u2019]*(?=\s|$)|[\u3002\uff01\uff1f\u061f\u0964]+", text)),
        **{name: sum(found) / max(len(lines), 1) for name, found in of_lines.items()},
        **{f"duplicate_{kind}_share": 1 - len(set(found)) / len(found) for kind, found in parts.items()},
    }


@settings(max_examples=300)
@given(st.lists(PARTS, max_size=40).map("".join) | st.text(max_size=60))
def test_words_and_lines_are_counted_as_they_are_defined(text: str) -> None:
    expected = of_the_definitions(text)
    found = Prose.measure(DocumentText(text))

    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)


SENTENCES = {
    "en": [
        "The river was so low this summer that we could walk across on the stones.",
        "She asked whether the train would still run after the storm had passed.",
        "Nobody in the office remembered where the old keys had been stored.",
        "A good recipe tells you why each step matters, and not only what to do.",
    ],
    "de": [
        "Der Fluss war in diesem Sommer so niedrig, dass wir auf den Steinen hinübergehen konnten.",
        "Sie fragte, ob der Zug nach dem Sturm noch fahren würde.",
        "Niemand im Büro erinnerte sich daran, wo die alten Schlüssel lagen.",
        "Ein gutes Rezept erklärt, warum jeder Schritt wichtig ist.",
    ],
    "nl": [
        "De rivier stond deze zomer zo laag dat we over de stenen konden lopen.",
        "Ze vroeg of de trein na de storm nog zou rijden.",
        "Niemand op kantoor wist nog waar de oude sleutels lagen.",
        "Een goed recept legt uit waarom elke stap belangrijk is.",
    ],
    "uk": [
        "Цього літа річка була такою мілкою, що ми перейшли її по камінню.",
        "Вона запитала, чи поїде потяг після бурі.",
        "Ніхто в офісі не пам'ятав, де лежать старі ключі.",
        "Добрий рецепт пояснює, чому важливий кожен крок.",
    ],
    "zh": [
        "今年夏天河水很浅，我们可以踩着石头走过去。",
        "她问暴风雨过后火车还会不会开。",
        "办公室里没有人记得旧钥匙放在哪里。",
        "一份好的食谱会说明每一步为什么重要。",
    ],
}
ON = {"languages": None, "confidence_minimum": None}


def language_of(text: str) -> tuple[str, float]:
    row = features_of(text, natural_language=ON)
    return str(row["natural_language"]), float(row["natural_language_confidence"])


@pytest.mark.parametrize("language", SENTENCES)
def test_each_sentence_is_identified_and_a_page_of_them_is_certain(language: str) -> None:
    assert {language_of(sentence)[0] for sentence in SENTENCES[language]} == {language}

    name, confidence = language_of("\n".join(SENTENCES[language]))
    assert (name, confidence > 0.9) == (language, True)


def test_of_a_long_text_its_start_middle_and_end_are_read() -> None:
    dutch, other = " ".join(SENTENCES["nl"]), "0123 4567 89\n" * 2000
    assert language_of(other + dutch + other)[0] == "nl"
    assert language_of(other + dutch)[0] == "nl"


def test_a_text_without_letters_has_no_language_and_code_is_uncertain() -> None:
    assert language_of("1 + 2 = 3\n") == ("", 0.0)
    assert language_of("def f(x):\n    return x + 1\n")[1] < 0.5


def test_languages_and_confidence_are_thresholds() -> None:
    texts = [("s", name, "\n".join(SENTENCES[name])) for name in ("en", "de", "uk")] + [("s", "table", "1 2 a 4\n" * 9)]

    def verdicts(**settings: object) -> list[str]:
        judged = ledger(texts, filters__natural_language=ON | settings, filters__alphanumeric_share_minimum=None)
        return list(judged["verdict"])

    assert verdicts() == ["kept"] * 4
    other = "natural_language_other"
    assert verdicts(languages=["de", "en"]) == ["kept", "kept", other, other]
    assert verdicts(confidence_minimum=0.5) == [*["kept"] * 3, "natural_language_confidence_below"]


def test_without_them_the_ledger_has_no_such_columns() -> None:
    off = {"natural_language", "natural_language_confidence", *MEASURES}
    assert not off & features_of("A text.").keys()
