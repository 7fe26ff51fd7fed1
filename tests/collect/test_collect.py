import json
from pathlib import Path
from typing import Any

import pytest

from stages.collect.params import CollectParams
from stages.runtime.errors import UserError
from stages.runtime.section import check_section
from tests.collect.collecting import NO_FIELDS, collect, files, report
from tests.small_project import FILES_SOURCE, folder_bytes, sections, write_corpus

DOCUMENTS = Path("data/documents")


@pytest.fixture(autouse=True)
def corpus(project: Path) -> None:
    write_corpus(project, 6)


def reported(*sources: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The report of a run."""
    collect(*sources, **changes)
    return report()


def rows(file: str, /, **fields: str) -> dict[str, Any]:
    return files(file, fields=NO_FIELDS | fields)


def test_each_file_is_one_document_that_says_where_it_is_from() -> None:
    documents = collect()

    assert len(documents) == report()["documents"] == 6
    assert {item.path for item in documents} == {f"corpus/module_{number:03d}.py" for number in range(6)}
    assert {(item.source, item.revision, item.license) for item in documents} == {("mine", "1", "MIT")}
    assert report()["bytes"] == sum(len(item.text.encode()) for item in documents)


def test_a_temporary_experiment_is_told_that_ignored_files_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / ".dvc/tmp/exps/standalone/one"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    write_corpus(place, 6)
    collect()

    assert "what git ignores below corpus/ is missing here (`git add -f`, or `dvc add`)" in capsys.readouterr().out


def test_the_same_corpus_gives_the_same_bytes_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collect()
    first = folder_bytes(DOCUMENTS) | folder_bytes(Path("reports"))
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    write_corpus(other, 6)
    collect()

    assert folder_bytes(DOCUMENTS) | folder_bytes(Path("reports")) == first


def test_the_corpus_id_changes_with_any_document() -> None:
    first = reported()["corpus_id"]
    Path("corpus/module_003.py").write_text("x = 1\n")

    assert reported()["corpus_id"] != first


def test_a_corpus_without_a_document_is_refused() -> None:
    for path in Path("corpus").iterdir():
        path.write_text("")

    with pytest.raises(UserError, match=r"^collect: the corpus is empty: all 6 texts were left out \(empty: 6\)$"):
        collect()


def test_only_allowed_licenses_pass() -> None:
    lines = [{"content": f"x = {number}", "license": license} for number, license in enumerate(["MIT", "GPL-3.0", ""])]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = rows("rows.jsonl", license="license") | {"license": ""}

    assert reported(source)["left_out"] == {"license not allowed: GPL-3.0": 1}
    assert reported(source, collect__unlicensed=False)["left_out"] == {
        "license not allowed: GPL-3.0": 1,
        "license not allowed: unknown": 1,
    }


def test_a_limit_takes_the_same_documents_every_time_and_stays_below() -> None:
    whole = reported()["bytes"]

    for limit in (whole // 2, whole - 1):
        first = reported(collect__max_bytes=limit)
        assert 0 < first["bytes"] <= limit
        assert reported(collect__max_bytes=limit) == first
    of_source = reported(FILES_SOURCE | {"max_bytes": whole // 2})
    assert 0 < of_source["bytes"] <= whole // 2
    assert of_source["left_out"] == {"after the source's limit of bytes was reached": 1}


def test_sources_mix_and_a_limit_binds_the_later_ones() -> None:
    Path("rows.jsonl").write_text(json.dumps({"content": "x = 1\n" * 50}) + "\n")
    both = reported(FILES_SOURCE, rows("rows.jsonl") | {"name": "rows"})
    limited = reported(FILES_SOURCE, rows("rows.jsonl") | {"name": "rows"}, collect__max_bytes=both["bytes"] - 1)

    assert both["bytes_per_source"].keys() == {"mine", "rows"}
    assert limited["bytes_per_source"].keys() == {"mine"}
    assert limited["left_out"] == {"after collect.max_bytes was reached": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"collect__sources": [FILES_SOURCE | {"share": 0.0}]}, r"sources.*share = 0\.0: Input should be"),
        ({"collect__sources": [FILES_SOURCE | {"share": 1.5}]}, r"sources.*share = 1\.5: Input should be"),
        # Else `clean` ends in a traceback when it writes the splits.
        ({"collect__shard_bytes": 3 * 10**9}, r"shard_bytes = 3000000000: Input should be less than or equal to 1000"),
        ({"collect__max_document_bytes": 3 * 10**9}, "max_document_bytes = 3000000000: Input should be less than"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_before_anything_is_read(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=rf"collect\.{said}"):
        check_section("collect", sections(**changes)["collect"], CollectParams)


def test_a_share_takes_about_that_part_of_a_source_and_a_larger_one_more_of_the_same() -> None:
    write_corpus(Path(), 200)
    tenth, half = ({item.id for item in collect(files(share=share))} for share in (0.1, 0.5))

    assert 8 <= len(tenth) <= 36
    assert 80 <= len(half) <= 120
    assert tenth < half
