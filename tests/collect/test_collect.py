import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.collect.__main__ import main
from stages.formats.documents import read_documents
from stages.formats.reports import read_json
from stages.runtime.entry import UserError
from tests.small_project import FILES_SOURCE, ROOT, folder_bytes, write_corpus, write_project

DOCUMENTS = Path("data/documents")
NO_FIELDS = {"source": None, "path": None, "license": None}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path, 6)
    write_project(tmp_path)
    return tmp_path


def collect(*sources: dict[str, Any], **changes: Any) -> dict[str, Any]:
    if sources:
        changes["collect__sources"] = list(sources)
    write_project(Path(), **changes)
    main()
    report: dict[str, Any] = read_json(Path("reports/collect.json"))
    return report


def rows(file: str, /, **fields: str) -> dict[str, Any]:
    return FILES_SOURCE | {"globs": [file], "fields": NO_FIELDS | fields}


def test_each_file_is_one_document_that_says_where_it_is_from() -> None:
    report = collect()

    documents = list(read_documents(DOCUMENTS))
    assert len(documents) == report["documents"] == 6
    assert {item.path for item in documents} == {f"corpus/module_{number:03d}.py" for number in range(6)}
    assert {(item.source, item.revision, item.license) for item in documents} == {("mine", "1", "MIT")}
    assert report["bytes"] == sum(len(item.text.encode()) for item in documents)


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
    first = collect()["corpus_id"]
    Path("corpus/module_003.py").write_text("x = 1\n")

    assert collect()["corpus_id"] != first


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("latin1.py", "caf\xe9".encode("latin-1"), "not UTF-8"),
        ("image.png", b"\x89PNG\r\n\x1a\n\0\0", "binary (NUL bytes)"),
        ("nul.py", b"a = 1\n\0\n", "binary (NUL bytes)"),
        ("empty.py", b"", "empty"),
        ("blank.py", b" \n\t\n", "empty"),
    ],
)
def test_what_is_no_text_is_skipped_counted_and_named(name: str, content: bytes, reason: str) -> None:
    Path("corpus", name).write_bytes(content)

    report = collect()

    assert report["documents"] == 6
    assert report["left_out"] == {reason: 1}
    assert Path("data/left_out.csv").read_text() == f"source,path,reason\nmine,corpus/{name},{reason}\n"


def test_a_byte_order_mark_goes_and_line_ends_stay() -> None:
    Path("corpus/windows.py").write_bytes(b"\xef\xbb\xbfa = 1\r\nb = 2\r\n")
    collect()

    assert "a = 1\r\nb = 2\r\n" in [item.text for item in read_documents(DOCUMENTS)]


def test_a_pattern_takes_what_it_matches_each_once() -> None:
    source = FILES_SOURCE | {"globs": ["corpus/module_00[1-3].py", "corpus/**/*_001.py"]}

    assert collect(source)["documents"] == 3


def test_a_source_that_does_not_exist_is_refused_by_its_name() -> None:
    with pytest.raises(UserError) as refused:
        collect(FILES_SOURCE | {"globs": ["corpsu/*.py"]})

    assert str(refused.value) == (
        f"collect.sources: `corpsu/*.py` matches no file; correct the path (relative to {Path.cwd()})"
    )


def test_a_corpus_without_a_document_is_refused_and_leaves_the_previous_one() -> None:
    collect()
    before = folder_bytes(DOCUMENTS)
    for path in Path("corpus").iterdir():
        path.write_text("")

    with pytest.raises(UserError) as refused:
        collect()

    assert str(refused.value) == "collect: the corpus is empty: all 6 texts were left out (empty: 6)"
    assert folder_bytes(DOCUMENTS) == before


def test_a_failing_stage_ends_with_one_line_and_exit_code_2() -> None:
    write_project(Path(), collect__sources=[FILES_SOURCE | {"globs": ["corpsu"]}])

    run = subprocess.run(
        [sys.executable, "-m", "stages.collect"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 2
    assert run.stderr.startswith("error: collect.sources: `corpsu` matches no file")
    assert len(run.stderr.splitlines()) == 1
    assert not Path("data").exists() or not any(Path("data").iterdir())


def test_only_allowed_licences_pass() -> None:
    lines = [{"content": f"x = {number}", "licence": licence} for number, licence in enumerate(["MIT", "GPL-3.0", ""])]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = rows("rows.jsonl", license="licence") | {"license": ""}

    assert collect(source)["left_out"] == {"licence not allowed: GPL-3.0": 1}
    assert collect(source, collect__unlicensed=False)["left_out"] == {
        "licence not allowed: GPL-3.0": 1,
        "licence not allowed: unknown": 1,
    }


def test_lines_of_json_keep_their_own_source_path_and_licence() -> None:
    row = {"content": "x = 1\n", "repo": "me/mine", "file": "a.py", "licence": "Apache-2.0"}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n\n" + json.dumps({"content": "y = 2\n"}) + "\n")

    collect(rows("rows.jsonl", source="repo", path="file", license="licence"))

    found = sorted((item.source, item.path, item.license, item.text) for item in read_documents(DOCUMENTS))
    assert found == [("me/mine", "a.py", "Apache-2.0", "x = 1\n"), ("mine", "rows.jsonl#3", "MIT", "y = 2\n")]


def test_a_limit_takes_the_same_documents_every_time_and_stays_below() -> None:
    whole = collect()["bytes"]

    for limit in (whole // 2, whole - 1):
        first = collect(collect__max_bytes=limit)
        assert 0 < first["bytes"] <= limit
        assert collect(collect__max_bytes=limit) == first
    of_source = collect(FILES_SOURCE | {"max_bytes": whole // 2})
    assert 0 < of_source["bytes"] <= whole // 2
    assert of_source["left_out"] == {"over the source's max_bytes, with all after it": 1}


def test_sources_mix_and_a_limit_binds_the_later_ones() -> None:
    Path("rows.jsonl").write_text(json.dumps({"content": "x = 1\n" * 50}) + "\n")
    both = collect(FILES_SOURCE, rows("rows.jsonl") | {"name": "rows"})
    limited = collect(FILES_SOURCE, rows("rows.jsonl") | {"name": "rows"}, collect__max_bytes=both["bytes"] - 1)

    assert both["bytes_per_source"].keys() == {"mine", "rows"}
    assert limited["bytes_per_source"].keys() == {"mine"}
    assert limited["left_out"] == {"over collect.max_bytes, with all after it": 1}


def test_half_a_folder_that_a_kill_left_is_not_taken_over() -> None:
    left = Path("data/.documents.1.partial")
    left.mkdir(parents=True)
    (left / "b0.parquet").write_bytes(b"half")
    collect()

    assert not left.exists()
    assert b"half" not in folder_bytes(DOCUMENTS).values()


def test_nothing_after_the_first_document_over_a_limit_is_taken() -> None:
    sizes = [len(path.read_bytes()) for path in sorted(Path("corpus").iterdir())]
    Path("corpus/zzz.py").write_text("x = 1\n")

    report = collect(collect__max_bytes=sum(sizes) - 1)

    assert report["documents"] == len(sizes) - 1
