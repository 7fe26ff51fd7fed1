"""A classifier trained on labelled texts, as a column of the ledger and as a filter."""

from pathlib import Path
from typing import Any

import pytest

from stages.clean.commands.quality import fitted
from stages.runtime.entry import UserError
from tests.clean.labelled import labelled_documents
from tests.clean.measured import features_of
from tests.clean.test_verdicts import ledger

MODEL = Path("quality.npz")


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    MODEL.write_bytes(fitted(labelled_documents(40)).content())


def quality(minimum: float | None = None) -> dict[str, Any]:
    return {"model": MODEL.name, "minimum": minimum}


def test_documents_like_the_good_ones_score_high_and_the_minimum_is_a_threshold() -> None:
    texts = [("s", f"{number}.txt", text) for number, (text, _) in enumerate(labelled_documents(60)[80:])]
    is_good = [good for _, good in labelled_documents(60)[80:]]

    judged = ledger(texts, filters__quality=quality(0.5), filters__characters_per_token_minimum=None)

    assert [score > 0.5 for score in judged["quality"]] == is_good
    assert list(judged["verdict"]) == ["kept" if good else "quality_below" for good in is_good]
    assert features_of("", quality=quality())["quality"] == 0.0


def test_the_same_documents_give_the_same_file_in_any_order() -> None:
    assert fitted(labelled_documents(40)).content() == MODEL.read_bytes()
    assert fitted(labelled_documents(39)).content() != MODEL.read_bytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "clean.filters.quality.model: quality.npz cannot be read (No such file or directory); train it with"),
        (b"", "quality.npz: no classifier of `parrotflow data quality`"),
        (b"PK\x03\x04 no archive", "quality.npz: no classifier of `parrotflow data quality`"),
    ],
)
def test_what_is_no_classifier_is_refused(content: bytes | None, said: str) -> None:
    MODEL.unlink()
    if content is not None:
        MODEL.write_bytes(content)

    with pytest.raises(UserError) as refused:
        features_of("x", quality=quality())
    assert said in str(refused.value)


def test_without_it_the_ledger_has_no_such_column() -> None:
    assert "quality" not in features_of("A text.")
