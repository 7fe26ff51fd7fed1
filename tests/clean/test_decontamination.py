import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stages.clean.__main__ import main, searched_items
from stages.clean.decontamination import Contamination, find_contaminated
from stages.clean.masking import mask
from stages.clean.params import Decontamination
from stages.collect.__main__ import main as collect
from stages.formats.documents import write_shard
from stages.formats.reports import read_json
from stages.runtime.errors import UserError
from tests.small_project import document, write_corpus, write_project

PROBLEM = 'def has_close(numbers, threshold):\n    """ Check if two numbers are closer than threshold """\n'
SOLUTION = "    for first in numbers:\n        if first < threshold:\n            return 1\n"
SETS = {"files": ["evaluation.jsonl"], "fields": ["prompt", "solution"], "ngram_size": 8, "minimum_words": 8}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    items = [{"prompt": "def other():\n", "solution": "    return 1"}, {"prompt": PROBLEM, "solution": SOLUTION}]
    write_items("evaluation.jsonl", *items)


def write_items(name: str, *items: dict[str, Any]) -> None:
    Path(name).write_text("".join(json.dumps(item) + "\n" for item in items))


def search(texts: Sequence[str], masks: Sequence[str] = (), **changes: Any) -> Contamination:
    """Search a shard with these texts."""
    write_shard(Path("b.parquet"), [document(mask(text, masks).text) for text in texts])
    return find_contaminated([Path("b.parquet")], Decontamination.model_validate(SETS | changes), masks)


def because(*texts: str, masks: Sequence[str] = (), **changes: Any) -> dict[int, str]:
    """Of each contaminated text, by its position, the item and the words that both have."""
    return search(texts, masks, **changes).because


def test_every_document_with_a_passage_is_named_with_its_own_item_and_the_words() -> None:
    write_items("passage.jsonl", {"prompt": SOLUTION})
    texts = ("x = 1\n\n" + PROBLEM.upper().replace("    ", "\t"), "z = 1", "b = 2\n" + PROBLEM, "c = 3\n" + SOLUTION)

    problem = "evaluation.jsonl#2: def has_close numbers threshold check if two numbers"
    assert because(*texts, files=["evaluation.jsonl", "passage.jsonl"], fields=["prompt"]) == {
        0: problem,
        2: problem,
        3: "passage.jsonl#1: for first in numbers if first threshold return",
    }


def test_an_item_with_an_address_is_found_where_addresses_are_masked() -> None:
    item = "Write to jane.doe@mail.org or to john.roe@mail.org for a copy"
    write_items("addresses.jsonl", {"prompt": item, "solution": ""})
    leak = f"x = 1\n# {item}\n"

    assert because(leak, files=["addresses.jsonl"]).keys() == {0}
    assert because(leak, files=["addresses.jsonl"], masks=["emails"]) == {
        0: "addresses.jsonl#1: write to email or to email for a"
    }
    assert because(leak, files=["addresses.jsonl"], masks=["emails"], ngram_size=20).keys() == {0}


def test_a_shorter_run_of_common_words_is_no_passage() -> None:
    near = "def has_close(numbers, threshold):\n    return numbers\n"

    assert because(near) == {}
    assert because(near, ngram_size=4, minimum_words=4).keys() == {0}


def test_another_evaluation_set_under_the_same_name_is_looked_for_again() -> None:
    write_items("passage.jsonl", {"prompt": "one two three four five six seven eight nine", "solution": ""})
    assert because(PROBLEM, files=["passage.jsonl"]) == {}
    write_items("passage.jsonl", {"prompt": PROBLEM, "solution": ""})

    assert because(PROBLEM, files=["passage.jsonl"]).keys() == {0}


SHORT = (
    {"prompt": "Say the word: ANANAS", "solution": "print('ananas')"},
    {"prompt": "Add numbers.", "solution": "lambda a, b: a + b"},
    {"prompt": "Hello", "solution": "world"},
    {"prompt": "...", "solution": ""},
)
"""Of 6, 7, 2 and 0 words."""


def test_an_item_shorter_than_an_ngram_is_searched_for_as_a_whole_and_the_report_counts_how() -> None:
    write_items("short.jsonl", *SHORT)
    whole, part = (f"x = 1\n# say the word ananas: print {word}\ny = 2\n" for word in ("ananas", "banana"))
    within = "hello hello world numbers add numbers lambda a b a b world hello\n"
    changes = {"files": ["short.jsonl", "evaluation.jsonl"], "minimum_words": 3}

    found = search((whole, part, "print('hello world')\n", within), **changes)

    assert found.because.keys() == {0, 3}
    assert found.because[0] == "short.jsonl#1: say the word ananas print ananas"
    assert found.searched == {"by_ngrams": 1, "whole": 3, "not_searched": 2}
    assert searched_items(found.searched, Decontamination.model_validate(SETS | changes)) == (
        "evaluation items: 1 searched for by 8-word sequences, 3 shorter ones as a whole, 2 with fewer than 3 words "
        "not searched for"
    )


def test_the_stage_reports_how_it_searched(capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(Path(), 20)
    write_project(Path(), clean__decontamination=SETS)
    collect()

    main()

    assert read_json(Path("reports/clean.json"))["evaluation_items"] == {"by_ngrams": 1, "not_searched": 1, "whole": 0}
    assert "evaluation items: 1 searched for by 8-word sequences" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("nowhere.jsonl", None, "nowhere.jsonl: cannot be read (No such file or directory); correct or remove it"),
        ("fields.jsonl", '{"prompt": "a"}', "clean.decontamination: fields.jsonl#1: field `solution` is missing"),
        (
            "mapping.jsonl",
            '{"prompt": {"text": ["a"], "label": ["A"]}, "solution": ""}\n',
            "clean.decontamination: mapping.jsonl#1: field `prompt` has subfields (text, label)",
        ),
        ("set.txt", "a set of words", "set.txt: rows are read from .jsonl, .json, .csv, .tsv, .parquet: rename"),
        ("short.jsonl", json.dumps(SHORT[0]), "clean.decontamination: no item of short.jsonl has 8 words"),
    ],
)
def test_an_evaluation_set_that_cannot_serve_is_refused(name: str, content: str | None, said: str) -> None:
    if content is not None:
        Path(name).write_text(content)

    with pytest.raises(UserError) as refused:
        because("x = 1", files=[name])

    assert str(refused.value).startswith(said)


def test_a_bound_above_the_length_of_an_ngram_is_refused() -> None:
    with pytest.raises(ValueError, match=r"minimum_words: at most ngram_size \(8\)"):
        Decontamination.model_validate(SETS | {"minimum_words": 9})


TESTS = ["assert add(1, 2) == 3\nassert add(2, 2) == 4", "assert add(5, 6) == 11"]
LIGATURES = "the office will find five flat coffees alone"
CYRILLIC = [f"{chr(0x430 + n)}{chr(0x431 + n)}{chr(0x432 + n)}" for n in range(20)]


@pytest.mark.parametrize(
    ("name", "item", "fields", "copy"),
    [
        ("list.jsonl", {"tests": TESTS}, ["tests"], "\n".join(TESTS)),
        ("LIST.JSONL.GZ", {"tests": TESTS}, ["tests"], "\n".join(TESTS)),
        ("nested.jsonl", {"choices": {"text": TESTS, "label": ["A", "B"]}}, ["choices.text"], "\n".join(TESTS)),
        ("null.jsonl", {"prompt": "\n".join(TESTS), "solution": None}, ["prompt", "solution"], "\n".join(TESTS)),
        ("ends.jsonl", {"prompt": PROBLEM + "\u2028\x85\u2029"}, ["prompt"], PROBLEM),
        ("pdf.jsonl", {"prompt": LIGATURES}, ["prompt"], LIGATURES.replace("ff", "\ufb00").replace("al", "a\u00adl")),
        ("script.jsonl", {"prompt": " ".join(CYRILLIC)}, ["prompt"], f"'''{' '.join(CYRILLIC).upper()}'''"),
    ],
)
def test_a_verbatim_copy_of_lists_nested_fields_nulls_and_any_character_is_found(
    name: str, item: dict[str, Any], fields: list[str], copy: str
) -> None:
    content = (json.dumps(item, ensure_ascii=False) + "\r\n").encode()
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".GZ") else content)

    assert because(f"x = 1\n{copy}\ny = 2", files=[name], fields=fields, ngram_size=50).keys() == {0}
