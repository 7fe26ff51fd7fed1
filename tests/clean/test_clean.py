import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from stages.clean import ledger
from stages.clean.__main__ import main
from stages.clean.filtering import Measure
from stages.clean.ledger import CHARACTERS, EXAMPLES
from stages.collect.__main__ import main as collect
from stages.formats.documents import document_id, read_documents, read_ledger
from stages.formats.reports import read_json
from stages.runtime.errors import UserError
from tests.small_project import FILES_SOURCE, folder_bytes, write_corpus, write_project

CLEAN = Path("data/clean")
NEAR = {"similarity": 0.85, "minimum_words": 20}
MASKS = {"emails": True, "ip_addresses": True, "keys": True}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    write_corpus(tmp_path, 30)
    Path("corpus/copy.py").write_text(Path("corpus/module_004.py").read_text() + "\n\n")
    Path("corpus/long.py").write_text("x" * 2000)
    write_project(tmp_path)
    collect()


def clean(**changes: Any) -> dict[str, Any]:
    write_project(Path(), **changes)
    main()
    report: dict[str, Any] = read_json(Path("reports/clean.json"))
    return report


def test_what_is_kept_is_in_one_split_and_the_report_adds_up() -> None:
    report = clean()

    train, validation = ({item.path for item in read_documents(CLEAN / split)} for split in ("train", "validation"))
    assert len(train) == report["train"]["documents"]
    assert len(validation) == report["validation"]["documents"]
    assert not train & validation
    assert report["documents"] == 32
    assert report["kept"]["documents"] == 30
    assert {name: drop["documents"] for name, drop in report["dropped"].items()} == {
        "exact_duplicate": 1,
        "line_length_maximum_above": 1,
    }
    dropped = sum(drop["bytes"] for drop in report["dropped"].values())
    assert report["bytes"] == report["train"]["bytes"] + report["validation"]["bytes"] + dropped
    rows = read_ledger().to_pandas().set_index("path")
    assert len(rows) == 32
    assert rows.loc["corpus/long.py", ["line_length_maximum", "verdict", "split"]].tolist() == [
        2000,
        "line_length_maximum_above",
        "",
    ]


def test_the_bytes_do_not_depend_on_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    clean(clean__near_duplicates=NEAR)
    alone = folder_bytes(CLEAN) | folder_bytes(Path("reports"))
    shutil.rmtree(".parrotflow")
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    clean(clean__near_duplicates=NEAR)

    assert folder_bytes(CLEAN) | folder_bytes(Path("reports")) == alone


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards that are measured; its list fills while the test runs."""
    passes: list[str] = []
    measure_shard = ledger._measure_shard

    def noting(measures: Mapping[str, Measure], shard: Path, folder: Path) -> None:
        passes.append(shard.name)
        measure_shard(measures, shard, folder)

    monkeypatch.setattr(ledger, "_measure_shard", noting)
    return passes


def test_another_threshold_measures_nothing_again_and_another_filter_each_shard_once(measured: list[str]) -> None:
    clean()
    shards = list(measured)
    assert len(shards) == len(set(shards)) > 3

    report = clean(clean__filters__line_length_maximum=3000, clean__filters__line_length_mean_maximum=None)
    assert measured == shards
    assert "line_length_maximum_above" not in report["dropped"]

    clean(clean__filters__prose={"minimum": {"words": 2}, "maximum": {}})
    assert measured == shards * 2


def test_without_documents_it_says_what_to_run() -> None:
    shutil.rmtree("data/documents")

    with pytest.raises(UserError, match="data/documents: no documents; run `dvc repro`"):
        main()


def test_a_copy_of_a_near_duplicate_resembles_the_copy() -> None:
    lines = [f"name{number} =\n" for number in range(100)]
    Path("corpus/alike_1.py").write_text("".join(lines))
    Path("corpus/alike_2.py").write_text("".join(lines[5:]))
    Path("corpus/alike_3.py").write_text("".join(lines[5:]) + "\n\n")
    collect()
    clean(clean__near_duplicates=NEAR)

    ledger = read_ledger().to_pandas().set_index("path")
    assert ledger.loc[ledger["because"] != "", ["verdict", "because"]].to_dict("index") == {
        "corpus/alike_2.py": {"verdict": "near_duplicate", "because": "mine corpus/alike_1.py, 0.950"},
        "corpus/alike_3.py": {"verdict": "exact_duplicate", "because": "mine corpus/alike_2.py"},
        "corpus/module_004.py": {"verdict": "exact_duplicate", "because": "mine corpus/copy.py"},
    }


def test_a_masked_document_has_the_id_of_its_new_text_and_the_report_counts_it() -> None:
    Path("corpus/author.py").write_text("AUTHOR = 'jane@mail.org'\nSERVER = '8.8.8.8'\n")
    collect()
    report = clean(clean__masks=MASKS)

    documents = [item for split in ("train", "validation") for item in read_documents(CLEAN / split)]
    masked = next(item for item in documents if item.path == "corpus/author.py")
    assert masked.text == "AUTHOR = '<EMAIL>'\nSERVER = '<IP_ADDRESS>'\n"
    assert all(item.id == document_id(item.text) for item in documents)
    assert report["masked"] == {"documents": 1, "emails": 1, "ip_addresses": 1, "keys": 0}


@pytest.mark.parametrize("near", [None, {"similarity": 0.85, "minimum_words": 10}])
def test_texts_that_are_equal_once_masked_are_duplicates_and_never_in_both_splits(near: dict[str, Any] | None) -> None:
    for number in range(31):
        text = f"# by author{number}@mail.org\nprint('the same')\n" + "x = 1\n" * 3
        Path(f"corpus/copy_{number}.py").write_text(text)
    collect()
    report = clean(clean__masks=MASKS, clean__near_duplicates=near)

    texts = [item.text for split in ("train", "validation") for item in read_documents(CLEAN / split)]
    assert len(texts) == len(set(texts))
    assert sum("the same" in text for text in texts) == 1
    assert report["masked"] == {"documents": 1, "emails": 1, "ip_addresses": 0, "keys": 0}


def test_a_filter_that_takes_most_of_a_source_is_named_with_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    words = "\n".join(f"word{number}" for number in range(100))
    for number in range(60):
        Path(f"corpus/game{number:02}.py").write_text(f"{words}\n{words} move{number}\n" * 5)
    collect()

    clean(clean__near_duplicates={"similarity": 0.85, "minimum_words": 10})

    warning = "WARNING: `near_duplicate` dropped 9[0-9]% of the bytes of mine: see clean.near_duplicates in params.yaml"
    assert re.search(warning, capsys.readouterr().out)


def test_held_out_parts_of_files_that_are_trained_on_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": f"unlike{number} words " * 5} for number in range(40)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = FILES_SOURCE | {"globs": ["rows.jsonl"], "name": "rows"}
    write_project(Path(), collect__sources=[FILES_SOURCE, source])
    collect()

    report = clean(collect__sources=[FILES_SOURCE, source])

    held_out = [item for item in read_documents(CLEAN / "validation") if item.source == "rows"]
    assert report["held_out_of_trained_files"] == len(held_out) > 0
    assert f"note: {len(held_out)} of {report['validation']['documents']} held-out" in capsys.readouterr().out


def test_a_misspelled_source_to_hold_out_is_refused_before_anything_is_measured(measured: list[str]) -> None:
    with pytest.raises(
        UserError, match=r"clean\.split\.validation_sources: no source `mien` in the corpus; it has mine"
    ):
        clean(clean__split={"by": "source", "validation_sources": ["mien"], "validation_share": None})

    assert measured == []


def examples() -> pd.DataFrame:
    """The rows of the ledger with the beginning of a text."""
    ledger: pd.DataFrame = read_ledger().to_pandas()
    return ledger[ledger["beginning"] != ""].sort_values("id")


def test_each_verdict_has_examples_that_say_what_decided() -> None:
    lines = [f"name{number} = {number}\n" for number in range(200)]
    Path("corpus/alike_1.py").write_text("".join(lines))
    Path("corpus/alike_2.py").write_text("".join(lines[:-10]))
    Path("passage.jsonl").write_text('{"text": "one two three four five"}\n')
    Path("corpus/leak.py").write_text("# One two, three: four five at jane@mail.org\n")
    collect()
    clean(
        clean__decontamination={"files": ["passage.jsonl"], "fields": ["text"], "ngram_size": 5, "minimum_words": 5},
        clean__near_duplicates=NEAR,
        clean__masks=MASKS,
    )

    shown = examples().set_index("verdict")
    assert shown[["path", "because"]].to_dict("index") == {
        "contaminated": {"path": "corpus/leak.py", "because": "passage.jsonl#1: one two three four five"},
        "exact_duplicate": {"path": "corpus/module_004.py", "because": "mine corpus/copy.py"},
        "line_length_maximum_above": {"path": "corpus/long.py", "because": ""},
        "near_duplicate": {"path": "corpus/alike_2.py", "because": "mine corpus/alike_1.py, 0.950"},
    }
    assert shown["beginning"]["contaminated"] == "# One two, three: four five at <EMAIL>\n"
    assert shown["beginning"]["line_length_maximum_above"] == "x" * CHARACTERS


def long_examples() -> list[str]:
    rows = examples()
    return rows.loc[rows["verdict"] == "line_length_maximum_above", "path"].tolist()


def test_the_few_examples_are_the_same_whatever_other_documents_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        Path(f"corpus/long_{number}.py").write_text(f"x{number}" * 5000)
    collect()
    clean()
    before = long_examples()
    with monkeypatch.context() as all_of_them:
        all_of_them.setattr(ledger, "EXAMPLES", 40)
        clean()
        paths = long_examples()
    for path in paths[10:]:
        Path(path).unlink()
    collect()
    clean()

    assert long_examples() == before == paths[:EXAMPLES]
