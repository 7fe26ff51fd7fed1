import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stages.clean.__main__ import main
from stages.collect.__main__ import main as collect
from stages.formats.cleaning import read_ledger
from stages.formats.documents import read_documents
from stages.formats.reports import read_json
from stages.runtime.entry import UserError
from tests.small_project import write_corpus, write_project

PROBLEM = 'def has_close(numbers, threshold):\n    """ Check if two numbers are closer than threshold """\n'
SOLUTION = "    for first in numbers:\n        if first < threshold:\n            return 1\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    write_corpus(tmp_path, 20)
    items = [{"prompt": "def other():\n", "solution": "    return 1"}, {"prompt": PROBLEM, "solution": SOLUTION}]
    Path("evaluation.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))


def clean(*, emails: bool = False, **changes: Any) -> set[str]:
    """The paths of what is kept."""
    values = {
        "files": ["evaluation.jsonl"],
        "fields": ["prompt", "solution"],
        "ngram_size": 8,
        "minimum_words": 8,
    } | changes
    write_project(Path(), clean__decontamination=values, clean__masks__emails=emails)
    collect()
    main()
    return {item.path for split in ("train", "validation") for item in read_documents(Path("data/clean") / split)}


def because() -> dict[str, str]:
    """Why each contaminated document was dropped, by its path."""
    ledger = read_ledger().set_index("path")
    return {str(path): text for path, text in ledger.loc[ledger["verdict"] == "contaminated", "because"].items()}


def test_a_document_with_a_passage_is_dropped_and_the_report_names_the_item_and_the_words() -> None:
    Path("corpus/leak.py").write_text("x = 1\n\n" + PROBLEM.upper().replace("    ", "\t") + "y = 2\n")

    assert "corpus/leak.py" not in clean()
    assert because() == {"corpus/leak.py": "evaluation.jsonl#2: def has_close numbers threshold check if two numbers"}


def test_an_item_with_an_address_is_found_where_addresses_are_masked() -> None:
    item = "Write to jane.doe@mail.org or to john.roe@mail.org for a copy"
    Path("addresses.txt").write_text(item)
    Path("corpus/leak.py").write_text(f"x = 1\n# {item}\n")

    assert "corpus/leak.py" not in clean(files=["addresses.txt"])
    assert "corpus/leak.py" not in clean(files=["addresses.txt"], emails=True)
    assert because() == {"corpus/leak.py": "addresses.txt#1: write to email or to email for a"}
    assert "corpus/leak.py" not in clean(files=["addresses.txt"], ngram_size=20, emails=True)


def test_every_document_with_a_passage_is_named_with_its_own_item() -> None:
    Path("corpus/first.py").write_text("a = 1\n" + PROBLEM)
    Path("corpus/second.py").write_text("b = 2\n" + PROBLEM)
    Path("corpus/third.py").write_text("c = 3\n" + SOLUTION)
    Path("passage.txt").write_text(SOLUTION)

    kept = clean(files=["evaluation.jsonl", "passage.txt"], fields=["prompt"])

    assert len(kept) == 20
    assert {path: text.partition(":")[0] for path, text in because().items()} == {
        "corpus/first.py": "evaluation.jsonl#2",
        "corpus/second.py": "evaluation.jsonl#2",
        "corpus/third.py": "passage.txt#1",
    }


def test_an_item_may_hold_any_character_that_json_need_not_escape() -> None:
    item = {"prompt": PROBLEM + "\u2028\x85\u2029", "solution": SOLUTION}
    Path("lines.jsonl").write_text(json.dumps(item, ensure_ascii=False) + "\r\n", encoding="utf-8")
    Path("corpus/leak.py").write_text(PROBLEM)

    assert "corpus/leak.py" not in clean(files=["lines.jsonl"])


def test_an_evaluation_set_has_to_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[tuple[str, Path]] = []
    monkeypatch.setattr("stages.clean.__main__.require_listed", lambda *named: watched.append(named))

    clean()

    assert watched == [("clean.decontamination.files", Path("evaluation.jsonl"))]


def test_a_shorter_run_of_common_words_is_no_passage() -> None:
    Path("corpus/near.py").write_text("def has_close(numbers, threshold):\n    return numbers\n")

    assert "corpus/near.py" in clean()
    assert "corpus/near.py" not in clean(ngram_size=4, minimum_words=4)


def test_another_evaluation_set_under_the_same_name_is_looked_for_again() -> None:
    Path("corpus/leak.py").write_text(PROBLEM)
    Path("passage.txt").write_text("one two three four five six seven eight nine")
    assert "corpus/leak.py" in clean(files=["passage.txt"])
    Path("passage.txt").write_text(PROBLEM)

    assert "corpus/leak.py" not in clean(files=["passage.txt"])


SHORT = [
    {"prompt": "Say the word: ANANAS", "solution": "print('ananas')"},
    {"prompt": "Add numbers.", "solution": "lambda a, b: a + b"},
    {"prompt": "Hello", "solution": "world"},
    {"prompt": "...", "solution": ""},
]
"""Of 6, 7, 2 and 0 words."""


def test_an_item_shorter_than_an_ngram_is_searched_for_as_a_whole_and_the_report_counts_how(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("short.jsonl").write_text("".join(json.dumps(item) + "\n" for item in SHORT))
    Path("corpus/whole.py").write_text("x = 1\n# say the word ananas: print ananas\ny = 2\n")
    Path("corpus/part.py").write_text("x = 1\n# say the word ananas: print banana\ny = 2\n")
    Path("corpus/hello.py").write_text("print('hello world')\n")
    Path("corpus/ngram.py").write_text("x = 1\n\n" + PROBLEM)
    kept = clean(files=["short.jsonl", "evaluation.jsonl"], minimum_words=3)

    assert {name for name in kept if "module" not in name} == {"corpus/part.py", "corpus/hello.py"}
    assert because()["corpus/whole.py"] == "short.jsonl#1: say the word ananas print ananas"
    assert read_json(Path("reports/clean.json"))["evaluation_items"] == {
        "by_ngrams": 1,
        "whole": 3,
        "not_searched": 2,
    }
    assert (
        "evaluation items: 1 searched for by 8 words in a row, 3 shorter ones as a whole, 2 with fewer than 3 words "
        "not searched for"
    ) in capsys.readouterr().out.splitlines()


def test_a_short_item_within_a_longer_known_passage_is_found_wherever_it_ends() -> None:
    Path("short.jsonl").write_text("".join(json.dumps(item) + "\n" for item in SHORT))
    Path("corpus/leak.py").write_text("hello hello world numbers add numbers lambda a b a b world hello\n")

    assert "corpus/leak.py" not in clean(files=["short.jsonl"], minimum_words=3)


def test_a_bound_above_the_length_of_an_ngram_is_refused() -> None:
    with pytest.raises(UserError, match=r"clean.decontamination.*minimum_words: at most ngram_size \(8\)"):
        clean(minimum_words=9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"files": ["nowhere.jsonl"]},
            "nowhere.jsonl: cannot be read (No such file or directory); clean.decontamination.files names it",
        ),
        ({"fields": ["nosuch"]}, "clean.decontamination: evaluation.jsonl: line 1: field `nosuch` is missing"),
        (
            {"files": ["mapping.jsonl"], "fields": ["choices"]},
            "clean.decontamination: mapping.jsonl: line 1: field `choices` has fields of its own",
        ),
        ({"files": ["set.JSON"]}, "clean.decontamination: set.JSON: rows are read from .jsonl"),
        ({"files": ["set.jsonl.zst"]}, "clean.decontamination: set.jsonl.zst: rows are read from .jsonl"),
        # As one text of JSON they would be searched for, and never be found.
        ({"files": ["items.txt"]}, "clean.decontamination: items.txt looks like JSON rows: rename it to .jsonl"),
        ({"ngram_size": 90, "minimum_words": 90}, "clean.decontamination: no item of evaluation.jsonl has 90 words"),
        ({"files": ["broken.jsonl"]}, "clean.decontamination: broken.jsonl: line 3 is not valid JSON"),
        ({"files": ["list.jsonl"]}, "clean.decontamination: list.jsonl: line 1 is not a JSON object"),
        ({"files": ["latin1.txt"]}, "clean.decontamination: latin1.txt is not UTF-8"),
        ({"files": ["corpus"]}, "clean.decontamination: corpus cannot be read (Is a directory)"),
    ],
)
def test_an_evaluation_set_that_cannot_serve_is_refused(changes: dict[str, Any], message: str) -> None:
    item = json.dumps({"prompt": PROBLEM, "solution": SOLUTION})
    Path("broken.jsonl").write_text(f"{item}\n\n{item[:-9]}")
    Path("list.jsonl").write_text("[1]\n")
    Path("latin1.txt").write_bytes(b"caf\xe9")
    Path("mapping.jsonl").write_text('{"choices": {"text": ["a"], "label": ["A"]}}\n')
    for name in ("set.JSON", "set.jsonl.zst"):
        Path(name).write_text("a set of words")
    Path("items.txt").write_text('{"prompt": "a b c"}\n{"prompt": "d e f"}\n')

    with pytest.raises(UserError) as refused:
        clean(**changes)

    assert str(refused.value).startswith(message)


TESTS = ["assert add(1, 2) == 3\nassert add(2, 2) == 4", "assert add(5, 6) == 11"]


@pytest.mark.parametrize(
    ("name", "item", "fields"),
    [
        ("LIST.JSONL.gz", {"tests": TESTS}, ["tests"]),
        ("nested.jsonl", {"choices": {"text": TESTS, "label": ["A", "B"]}}, ["choices.text"]),
        ("null.jsonl", {"prompt": "\n".join(TESTS), "solution": None}, ["prompt", "solution"]),
    ],
)
def test_a_verbatim_copy_of_lists_nested_fields_and_items_with_nulls_is_found(
    name: str, item: dict[str, Any], fields: list[str]
) -> None:
    content = (json.dumps(item) + "\n").encode()
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    Path("corpus/leak.py").write_text("\n".join(TESTS))

    assert "corpus/leak.py" not in clean(files=[name], fields=fields, ngram_size=50)


def test_a_passage_of_another_script_is_found() -> None:
    words = [f"{chr(0x430 + n)}{chr(0x431 + n)}{chr(0x432 + n)}" for n in range(20)]
    Path("passage.txt").write_text(" ".join(words))
    Path("corpus/copied.py").write_text(f"'''{' '.join(words[3:15]).upper()}'''\nx = 1\n")

    assert "corpus/copied.py" not in clean(files=["passage.txt"], fields=[])
