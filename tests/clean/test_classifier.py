"""The classifier of quality: trained by `parrotflow data quality`, a column of the ledger, and a filter."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.clean.__main__ import main as clean
from stages.clean.classifier import train
from stages.clean.commands import whatif
from stages.clean.commands.quality import main as quality_command
from stages.collect.__main__ import main as collect
from stages.formats.cleaning import read_ledger
from stages.runtime.entry import UserError
from tests.clean.test_ledger import features_of
from tests.clean.test_verdicts import ledger
from tests.small_project import write_project

MODEL = Path("quality.npz")

GOOD = ("the gardener", "a careful reader", "our teacher", "the old sailor")
DOES = ("explained why", "wrote down how", "showed us where", "remembered when")
WHAT = ("the roses grow in spring", "rain fills the river", "bread is baked at night", "the boats come home")

OFFER = ("BUY NOW", "click here", "FREE offer", "limited deal")
THING = ("cheap watches", "casino bonus", "miracle pills", "followers")


def labelled_documents(count: int) -> list[tuple[str, bool]]:
    """`count` sentences about a garden and as many advertisements, in turn, all different."""
    documents = []
    for number in range(count):
        first, second, third = number % 4, number // 4 % 4, number // 16 % 4
        documents.append((f"On day {number} {GOOD[first]} {DOES[second]} {WHAT[third]}.", True))
        documents.append((f"{OFFER[first]} {number} {THING[second]}!!! {OFFER[third]} {THING[first]} www", False))
    return documents


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    monkeypatch.setenv("COLUMNS", "200")
    for text, good in labelled_documents(40):
        folder = Path("good" if good else "bad")
        folder.mkdir(exist_ok=True)
        (folder / f"{len(list(folder.iterdir()))}.txt").write_text(text)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["quality", *arguments])
    quality_command()


def test_two_folders_and_their_rows_as_json_lines_give_the_same_file_and_say_how_well_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "good", "bad")
    said = capsys.readouterr().out
    rows = [json.dumps({"text": text, "good": good}) for text, good in reversed(labelled_documents(40))]
    Path("labelled.jsonl").write_text("\n".join(rows) + "\n")
    run(monkeypatch, "labelled.jsonl", "--output", "rows.npz")

    assert "100.0% are right at 0.5; a good one scores above a bad one in 100.0% of all pairs" in said
    assert 'set clean.filters.quality: {model: "quality.npz", minimum: null}' in said
    assert Path("quality.npz").read_bytes() == Path("rows.npz").read_bytes()


def test_what_if_says_what_a_minimum_drops_and_a_new_model_scores_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("corpus").mkdir()
    for number, (text, _) in enumerate(labelled_documents(45)[80:]):
        Path(f"corpus/{number}.txt").write_text(text)
    off = {f"clean__filters__{name}": None for name in ("alphanumeric_share_minimum", "characters_per_token_minimum")}
    run(monkeypatch, "good", "bad")
    write_project(Path(), clean__filters__quality={"model": "quality.npz", "minimum": None}, **off)
    collect()
    clean()
    scores = list(read_ledger()["quality"])
    assert sum(score > 0.5 for score in scores) == 5
    assert set(read_ledger()["verdict"]) == {"kept"}

    monkeypatch.setattr(sys, "argv", ["whatif", "filters.quality.minimum=0.5"])
    whatif.main()
    assert "by quality_below" in capsys.readouterr().out

    run(monkeypatch, "bad", "good")
    clean()
    assert list(read_ledger()["quality"]) == pytest.approx([1 - score for score in scores], abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "content", "said"),
    [
        (
            ["labelled.jsonl"],
            '{"text": "x"}',
            'labelled.jsonl: line 1: good: Field required; lines are like {"text": "...", "good": true}',
        ),
        (["labelled.jsonl"], '{"text": "x", "good": true}', "1 good and 0 bad documents: label at least 10 of each"),
        (
            ["labelled.jsonl"],
            '{"text": "x", "good": true}\n{"text": "x", "good": false}',
            "is labelled good and bad: 'x'",
        ),
        (["good", "nowhere"], "", "nowhere: no folder with documents"),
        (["good", "bad", "ugly"], "", "give a folder of good and one of bad documents, or one .jsonl file"),
        (["missing.jsonl"], "", "missing.jsonl: cannot be read (No such file or directory)"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], content: str, said: str
) -> None:
    Path("labelled.jsonl").write_text(content)

    with pytest.raises(UserError) as refused:
        run(monkeypatch, *arguments)
    assert said in str(refused.value)
    assert not Path("quality.npz").exists()


@pytest.fixture
def model() -> None:
    MODEL.write_bytes(train(labelled_documents(40)).content())


def quality(minimum: float | None = None) -> dict[str, Any]:
    return {"model": MODEL.name, "minimum": minimum}


@pytest.mark.usefixtures("model")
def test_documents_like_the_good_ones_score_high_and_the_minimum_is_a_threshold() -> None:
    texts = [("s", f"{number}.txt", text) for number, (text, _) in enumerate(labelled_documents(60)[80:])]
    is_good = [good for _, good in labelled_documents(60)[80:]]

    judged = ledger(texts, filters__quality=quality(0.5), filters__characters_per_token_minimum=None)

    assert [score > 0.5 for score in judged["quality"]] == is_good
    assert list(judged["verdict"]) == ["kept" if good else "quality_below" for good in is_good]
    assert features_of("", quality=quality())["quality"] == 0.0


@pytest.mark.usefixtures("model")
def test_the_same_documents_give_the_same_file_in_any_order() -> None:
    assert train(labelled_documents(40)).content() == MODEL.read_bytes()
    assert train(labelled_documents(39)).content() != MODEL.read_bytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "clean.filters.quality.model: quality.npz cannot be read (No such file or directory); train it with"),
        (b"", "quality.npz: no classifier of `parrotflow data quality`"),
        (b"PK\x03\x04 no archive", "quality.npz: no classifier of `parrotflow data quality`"),
    ],
)
def test_what_is_no_classifier_is_refused(content: bytes | None, said: str) -> None:
    if content is not None:
        MODEL.write_bytes(content)

    with pytest.raises(UserError) as refused:
        features_of("x", quality=quality())
    assert said in str(refused.value)


def test_without_it_the_ledger_has_no_such_column() -> None:
    assert "quality" not in features_of("A text.")
