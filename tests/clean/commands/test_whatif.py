import re
import sys
from pathlib import Path

import pytest

from stages.clean.__main__ import main as clean
from stages.clean.commands import whatif
from stages.collect.__main__ import main as collect
from stages.formats.documents import read_ledger
from stages.runtime.errors import UserError
from tests.small_project import folder_bytes, write_corpus, write_project


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    monkeypatch.setenv("COLUMNS", "200")
    write_corpus(tmp_path, 9)
    Path("corpus/wide.py").write_text("x = '" + "y" * 80 + "'\n")
    Path("corpus/long.py").write_text("x" * 2000 + "\n")
    write_project(tmp_path)
    collect()
    clean()


def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *changes: str) -> str:
    monkeypatch.setattr(sys, "argv", ["whatif", *changes])
    capsys.readouterr()
    whatif.main()
    return capsys.readouterr().out


def rows(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    return {name: rest for name, *rest in cells}


def test_it_says_what_a_threshold_would_drop_in_documents_bytes_and_licences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_bytes(Path("data"))
    answer = rows(ask(monkeypatch, capsys, "filters.line_length_maximum=80"))

    assert answer["collected"][0] == "11"
    assert answer["kept now"][0] == "10"
    assert answer["kept then"][0] == "9"
    assert answer["by line_length_maximum_above"] == ["1", "87"]
    assert answer["licence MIT"] == ["1", "87"]
    assert answer["mine corpus/wide.py"] == ["", "87"]
    assert folder_bytes(Path("data")) == before


def test_it_says_what_would_come_back(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ("clean.filters.line_length_maximum=3000", "filters.line_length_mean_maximum=null")
    changes += ("filters.characters_per_token_minimum=null",)
    text = ask(monkeypatch, capsys, *changes)

    assert "would be kept" in text
    assert "would be dropped" not in text
    assert rows(text)["mine corpus/long.py"] == ["", "2,001"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nosuch.key=1", "nosuch.key=1: expected KEY=VALUE with a key of params.yaml's section `clean`"),
        ("filters.line_length_maximum", "filters.line_length_maximum: expected KEY=VALUE with a key of params.yaml's"),
        ("filters.nosuch=1", "clean.filters.nosuch: unknown parameter (value 1)"),
        ("filters.line_length_maximum=-1", "clean.filters.line_length_maximum = -1: Input should be greater than"),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str, message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        ask(monkeypatch, capsys, change)


def test_its_answer_holds_where_near_duplicates_masks_and_the_split_matter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["near_duplicates.similarity=4e-1", "filters.line_length_mean_maximum=29.5"]
    changes += ["split.validation_share=0.6", "masks.emails=true"]
    params = {"near_duplicates__similarity": 0.4, "filters__line_length_mean_maximum": 29.5}
    params |= {"split__validation_share": 0.6, "masks__emails": True}
    near = {"similarity": 0.9, "minimum_words": 5}
    shared = [f"name_{k} = {k}\n" for k in range(40)]
    for number in range(12):
        own = [f"own_{number}_{k} = '{'y' * 5 * (number % 3)}'\n" for k in range(number)]
        Path(f"corpus/alike_{number}.py").write_text("".join([*shared, *own, f"author = 'a{number % 2}@mail.org'\n"]))
    write_project(Path(), clean__near_duplicates=near)
    collect()
    answer = rows(ask(monkeypatch, capsys, *changes))
    changed = {f"clean__{name}": value for name, value in params.items()}
    write_project(Path(), **{"clean__near_duplicates": near} | changed)
    clean()
    ledger = read_ledger().to_pandas()

    kept = ledger[ledger["verdict"] == "kept"]
    assert answer["kept now"] != answer["kept then"]
    for name, part in (("kept", kept), ("train", kept[kept["split"] == "train"])):
        assert answer[f"{name} then"] == [f"{len(part):,}", f"{part['bytes'].sum():,}"]


def test_of_a_near_duplicate_it_says_which_document_it_resembles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"name_{k} = {k}\n" for k in range(100)]
    Path("corpus/near_1.py").write_text("".join(lines))
    Path("corpus/near_2.py").write_text("".join(lines[10:]))
    collect()
    near = "near_duplicates={similarity: 0.8, minimum_words: 20}"

    assert "mine corpus/near_2.py (mine corpus/near_1.py, 0.900)" in rows(ask(monkeypatch, capsys, near))


def test_it_says_that_the_stage_would_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "The stage would fail: clean: the validation split" in ask(monkeypatch, capsys, "split.validation_share=0.0")
