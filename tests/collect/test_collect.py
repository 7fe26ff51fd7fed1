import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.collect.__main__ import main
from stages.collect.located import find
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


def rows(kind: str, file: str, /, **fields: str) -> dict[str, Any]:
    return FILES_SOURCE | {"kind": kind, "globs": [file], "text": "content", "fields": NO_FIELDS | fields}


def test_each_file_is_one_document_that_says_where_it_is_from() -> None:
    report = collect()

    documents = list(read_documents(DOCUMENTS))
    assert len(documents) == report["documents"] == 6
    assert {item.path for item in documents} == {f"corpus/module_{number:03d}.py" for number in range(6)}
    assert {(item.source, item.revision, item.license) for item in documents} == {("mine", "1", "MIT")}
    assert report["bytes"] == sum(len(item.text.encode()) for item in documents)


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
        ("image.png", b"\x89PNG\r\n\x1a\n\0\0", "not UTF-8"),
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


def test_an_unreadable_file_is_skipped_and_named() -> None:
    Path("corpus/memory.py").symlink_to("/proc/self/mem")
    named = FILES_SOURCE | {"globs": ["corpus/memory.py"]}

    assert collect(FILES_SOURCE | {"globs": ["corpus/mod*"]}, named)["left_out"] == {
        "unreadable: Input/output error": 1
    }


def test_pipes_and_links_to_nowhere_are_skipped_and_a_loop_of_links_ends() -> None:
    Path("corpus/nowhere.py").symlink_to("gone.py")
    os.mkfifo("corpus/pipe.py")
    Path("corpus/loop").symlink_to(Path.cwd() / "corpus", target_is_directory=True)

    report = collect()

    assert report["documents"] == 6
    assert report["left_out"] == {"no regular file": 2, "link to a folder (not followed)": 1}


@pytest.mark.parametrize("pattern", ["corpus", "corpus/*", "corpus/**/*", "corpus/**/*.py", "corp*/**/*.py"])
def test_links_to_folders_are_not_followed_but_counted_and_named(
    pattern: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("code")
    (elsewhere / "mine.py").write_text("x = 1\n")
    Path("corpus/loop").symlink_to(Path.cwd() / "corpus", target_is_directory=True)
    Path("corpus/code").symlink_to(elsewhere, target_is_directory=True)
    Path("corpus/.venv").mkdir()
    Path("corpus/.venv/lib64").symlink_to(elsewhere, target_is_directory=True)

    report = collect(FILES_SOURCE | {"globs": [pattern]})

    assert report["documents"] == 6
    reasons = {name: count for name, count in report["left_out"].items() if not name.startswith("hidden")}
    assert reasons == {"link out of its folder": 1, "link to a folder (not followed)": 1}
    named = Path("data/left_out.csv").read_text()
    assert "mine,corpus/code,link out of its folder\n" in named
    assert "mine,corpus/loop,link to a folder (not followed)\n" in named


@pytest.mark.parametrize("pattern", ["linked", "linked/*", "linked/**/*.py"])
def test_a_pattern_that_finds_nothing_but_a_link_to_a_folder_says_so_and_the_link_itself_can_be_named(
    pattern: str,
) -> None:
    Path("linked").mkdir()
    Path("linked/code").symlink_to(Path.cwd() / "corpus", target_is_directory=True)

    told = f"`{pattern}` matches no file; `linked/code` is a link out of its folder: copy it, or name it in globs"
    with pytest.raises(UserError, match=re.escape(told)):
        collect(FILES_SOURCE | {"globs": [pattern]})
    assert collect(FILES_SOURCE | {"globs": ["linked/code"]})["documents"] == 6


def test_among_rows_a_link_within_the_folder_is_passed_over_and_one_out_of_it_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    Path("rows/2026").mkdir(parents=True)
    Path("rows/2026/a.jsonl").write_text('{"content": "x = 1"}\n')
    Path("rows/latest").symlink_to("2026", target_is_directory=True)

    assert collect(rows("jsonl", "rows/**/*.jsonl"))["documents"] == 1
    Path("rows/more").symlink_to(tmp_path_factory.mktemp("more"), target_is_directory=True)
    with pytest.raises(UserError, match=r"^rows/more: link out of its folder; correct or remove it"):
        collect(rows("jsonl", "rows/**/*.jsonl"))


@pytest.mark.parametrize("pattern", ["corpus/**.py", "corpus/***/a.py"])
def test_two_stars_that_are_not_a_whole_part_of_a_path_are_refused(pattern: str) -> None:
    with pytest.raises(UserError, match=r"has to be a whole part of the path, as in `corpus/\*\*/\*\.py`"):
        find([pattern])


def test_a_pattern_takes_what_it_matches_each_once() -> None:
    source = FILES_SOURCE | {"globs": ["corpus/module_00[1-3].py", "corpus/**/*_001.py"]}

    assert collect(source)["documents"] == 3


@pytest.mark.parametrize("in_order", [True, False])
def test_a_file_that_one_pattern_names_is_taken_though_another_one_passes_by_it(tmp_path: Path, in_order: bool) -> None:
    (tmp_path / "elsewhere.py").write_text("x = 1\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/.hidden.py").write_text("x = 2\n")
    (tmp_path / "code/plain.py").write_text("x = 3\n")
    (tmp_path / "code/link.py").symlink_to(tmp_path / "elsewhere.py")
    globs = ["code/link.py", "code/.hidden.py", "code/**/*.py"]
    write_project(Path(), collect__sources=[FILES_SOURCE | {"globs": globs if in_order else globs[::-1]}])

    main()

    found = sorted(document.path for document in read_documents(Path("data/documents")))
    assert found == ["code/.hidden.py", "code/link.py", "code/plain.py"]


def test_a_hidden_or_linked_folder_that_is_named_too_is_not_said_to_be_left_out(tmp_path: Path) -> None:
    for folder in ("code/.hidden", "code/plain", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "one.py").write_text(f"x = '{folder}'\n")
    (tmp_path / "code/linked").symlink_to(tmp_path / "elsewhere")

    report = collect(FILES_SOURCE | {"globs": ["code", "code/linked", "./code/.hidden/"]})

    assert (report["documents"], report["left_out"]) == (3, {})


@pytest.mark.parametrize("kind", ["files", "jsonl"])
def test_a_file_under_several_spellings_of_its_path_is_one_document_by_the_plainest(kind: str) -> None:
    Path("a.jsonl").write_text('{"content": "x = 1"}\n')
    Path("0.jsonl").symlink_to("a.jsonl")
    Path("0").symlink_to(Path.cwd(), target_is_directory=True)
    Path("copy.jsonl").hardlink_to("a.jsonl")  # a file of its own: edited copies of it would be, too
    Path("00").mkdir()
    absolute = str(Path("a.jsonl").absolute())
    spellings = ["./a.jsonl", "a.jsonl", "00/../a.jsonl", absolute, "0.jsonl", "0/a.jsonl"]
    source = rows(kind, "") if kind == "jsonl" else FILES_SOURCE
    collect(source | {"globs": spellings})

    assert [document.path.partition("#")[0] for document in read_documents(DOCUMENTS)] == ["a.jsonl"]
    collect(source | {"globs": ["0.jsonl", "copy.jsonl"]})
    assert {one.path.partition("#")[0] for one in read_documents(DOCUMENTS)} == {"0.jsonl", "copy.jsonl"}


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
    source = rows("jsonl", "rows.jsonl", license="licence") | {"license": ""}

    assert collect(source)["left_out"] == {"licence not allowed: GPL-3.0": 1}
    assert collect(source, collect__unlicensed=False)["left_out"] == {
        "licence not allowed: GPL-3.0": 1,
        "licence not allowed: unknown": 1,
    }


def test_lines_of_json_keep_their_own_source_path_and_licence() -> None:
    row = {"content": "x = 1\n", "repo": "me/mine", "file": "a.py", "licence": "Apache-2.0"}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n\n" + json.dumps({"content": "y = 2\n"}) + "\n")

    collect(rows("jsonl", "rows.jsonl", source="repo", path="file", license="licence"))

    found = sorted((item.source, item.path, item.license, item.text) for item in read_documents(DOCUMENTS))
    assert found == [("me/mine", "a.py", "Apache-2.0", "x = 1\n"), ("mine", "rows.jsonl#3", "MIT", "y = 2\n")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"content": "x = ', "rows.jsonl: line 2 is not valid JSON (Invalid control character"),
        ("[1]", "rows.jsonl: line 2 is not a JSON object but list"),
        ('{"text": "x"}', "rows.jsonl#2: no field `content`; it has text"),
    ],
)
def test_a_bad_line_of_json_is_named_with_its_number(line: str, message: str) -> None:
    Path("rows.jsonl").write_text('{"content": "x = 1"}\n' + line + "\n")

    with pytest.raises(UserError) as refused:
        collect(rows("jsonl", "rows.jsonl"))

    assert str(refused.value).startswith(message)


def test_rows_of_parquet_are_documents_and_a_row_without_text_is_named() -> None:
    pq.write_table(pa.table({"content": ["x = 1\n", None, "y = 2\n"], "repo": ["a", "b", "c"]}), "rows.parquet")

    report = collect(rows("parquet", "rows.parquet", source="repo"))

    assert sorted((item.source, item.text) for item in read_documents(DOCUMENTS)) == [
        ("a", "x = 1\n"),
        ("c", "y = 2\n"),
    ]
    assert report["left_out"] == {"no text in the row": 1}


def test_parquet_without_the_column_is_refused_with_those_it_has() -> None:
    pq.write_table(pa.table({"text": ["x"], "repo": ["a"]}), "rows.parquet")

    with pytest.raises(UserError, match=r"rows\.parquet: no column `content`; it has text, repo"):
        collect(rows("parquet", "rows.parquet"))


def test_a_file_that_is_no_parquet_is_refused() -> None:
    Path("rows.parquet").write_text("hello")

    with pytest.raises(UserError, match=r"rows\.parquet: no readable Parquet file"):
        collect(rows("parquet", "rows.parquet"))


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
    both = collect(FILES_SOURCE, rows("jsonl", "rows.jsonl") | {"name": "rows"})
    limited = collect(
        FILES_SOURCE, rows("jsonl", "rows.jsonl") | {"name": "rows"}, collect__max_bytes=both["bytes"] - 1
    )

    assert both["bytes_per_source"].keys() == {"mine", "rows"}
    assert limited["bytes_per_source"].keys() == {"mine"}
    assert limited["left_out"] == {"over collect.max_bytes, with all after it": 1}


def test_half_a_folder_that_a_kill_left_is_not_taken_over() -> None:
    left = Path("data/.documents.partial")
    left.mkdir(parents=True)
    (left / "b0.parquet").write_bytes(b"half")
    collect()

    assert not left.exists()
    assert b"half" not in folder_bytes(DOCUMENTS).values()


@pytest.mark.parametrize("pattern", ["corpus", "corpus/*", "corpus/**/*.py", "corp*"])
def test_links_out_of_a_corpus_are_left_out_and_named_and_a_link_within_it_is_no_second_document(
    pattern: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("home") / "credentials"
    secret.write_text("aws_secret_access_key = 'x'\n")
    Path("corpus/readme.py").symlink_to(secret)
    Path("corpus/same.py").symlink_to("module_001.py")

    report = collect(FILES_SOURCE | {"globs": [pattern]})

    assert report["documents"] == 6
    assert report["left_out"] == {"link out of its folder": 1, "link to a file that is taken by its own name": 1}
    assert "mine,corpus/same.py,link to a file that is taken by its own name" in Path("data/left_out.csv").read_text()
    assert "mine,corpus/readme.py,link out of its folder" in Path("data/left_out.csv").read_text()


def test_hidden_files_and_folders_are_left_out_and_named() -> None:
    Path("corpus/.git").mkdir()
    Path("corpus/.git/config.py").write_text("x = 1\n")
    Path("corpus/.hidden.py").write_text("x = 1\n")

    report = collect()

    assert report["documents"] == 6
    assert report["left_out"] == {"hidden (its name begins with a dot)": 2}


def test_nothing_after_the_first_document_over_a_limit_is_taken() -> None:
    sizes = [len(path.read_bytes()) for path in sorted(Path("corpus").iterdir())]
    Path("corpus/zzz.py").write_text("x = 1\n")

    report = collect(collect__max_bytes=sum(sizes) - 1)

    assert report["documents"] == len(sizes) - 1
