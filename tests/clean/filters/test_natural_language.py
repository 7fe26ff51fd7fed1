# ruff: noqa: RUF001 - letters of other scripts
"""Sentences in five languages, written for this test, and what a filter by them keeps."""

import pytest

from tests.clean.test_ledger import features_of
from tests.clean.test_verdicts import ledger

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


def measured(text: str) -> tuple[str, float]:
    row = features_of(text, natural_language=ON)
    return str(row["natural_language"]), float(row["natural_language_confidence"])


@pytest.mark.parametrize("language", SENTENCES)
def test_each_sentence_is_identified_and_a_page_of_them_is_certain(language: str) -> None:
    assert {measured(sentence)[0] for sentence in SENTENCES[language]} == {language}

    name, confidence = measured("\n".join(SENTENCES[language]))
    assert (name, confidence > 0.9) == (language, True)


def test_of_a_long_text_its_start_middle_and_end_are_read() -> None:
    dutch, other = " ".join(SENTENCES["nl"]), "0123 4567 89\n" * 2000
    assert measured(other + dutch + other)[0] == "nl"
    assert measured(other + dutch)[0] == "nl"


def test_a_text_without_letters_has_no_language_and_code_is_uncertain() -> None:
    assert measured("1 + 2 = 3\n") == ("", 0.0)
    assert measured("def f(x):\n    return x + 1\n")[1] < 0.5


def test_languages_and_confidence_are_thresholds() -> None:
    texts = [("s", name, "\n".join(SENTENCES[name])) for name in ("en", "de", "uk")] + [("s", "table", "1 2 a 4\n" * 9)]

    def verdicts(**settings: object) -> list[str]:
        judged = ledger(texts, filters__natural_language=ON | settings, filters__alphanumeric_share_minimum=None)
        return list(judged["verdict"])

    assert verdicts() == ["kept"] * 4
    other = "natural_language_other"
    assert verdicts(languages=["de", "en"]) == ["kept", "kept", other, other]
    assert verdicts(confidence_minimum=0.5) == [*["kept"] * 3, "natural_language_confidence_below"]


def test_without_it_the_ledger_has_no_such_column() -> None:
    assert not {"natural_language", "natural_language_confidence"} & features_of("A text.").keys()
