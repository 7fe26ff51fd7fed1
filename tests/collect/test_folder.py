"""A folder of mixed files: each is read as what it is."""

import gzip
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from stages.collect.__main__ import main
from stages.formats.documents import read_documents
from stages.formats.reports import read_json
from stages.runtime.entry import UserError
from tests.small_project import FILES_SOURCE, ROOT, write_project

FOLDER = FILES_SOURCE | {
    "kind": "folder",
    "globs": ["corpus"],
    "text": ["text", "body"],
    "max_unpacked_bytes": 10**6,
    "part_bytes": 1000,
}


@pytest.fixture(autouse=True)
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    return tmp_path / "corpus"


def collected(**changes: Any) -> dict[str, str]:
    """Path below the folder -> text."""
    write_project(Path(), collect__sources=[FOLDER | changes])
    main()
    return {one.path.removeprefix("corpus/"): one.text for one in read_documents(Path("data/documents"))}


def left_out() -> dict[str, int]:
    counts: dict[str, int] = read_json(Path("reports/collect.json"))["left_out"]
    return counts


def test_text_rows_and_members_of_archives_are_documents(corpus: Path) -> None:
    (corpus / "poem.txt").write_text("a poem")
    (corpus / "notes.txt.gz").write_bytes(gzip.compress(b"some notes"))
    rows = [json.dumps({"body": text, "id": 1}) for text in ("first", "second")]
    (corpus / "rows.jsonl").write_text("\n".join(rows))
    (corpus / "[1] more.JSONL.gz").write_bytes(gzip.compress(b"\n" + rows[0].encode()))
    (corpus / "table.csv").write_text('\ufeffname,text\nA,"one, two"\n')
    pq.write_table(pa.table({"text": ["of a column"]}), corpus / "data.parquet")
    with zipfile.ZipFile(corpus / "letters.ZIP", "w") as archive:
        archive.writestr("1.md", "a letter")
        archive.writestr("more.jsonl", rows[0])

    assert collected() == {
        "poem.txt": "a poem",
        "notes.txt.gz": "some notes",
        "rows.jsonl#1": "first",
        "rows.jsonl#2": "second",
        "[1] more.JSONL.gz#2": "first",
        "table.csv#1": "one, two",
        "data.parquet#1": "of a column",
        "letters.ZIP!1.md": "a letter",
    }
    assert left_out() == {"rows or an archive within an archive (unpack it)": 1}


def test_rows_without_a_column_of_text_are_left_out_and_the_run_says_so(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "poem.txt").write_text("a poem")
    (corpus / "prices.csv").write_text("item,price\nbread,3\n")

    assert collected() == {"poem.txt": "a poem"}
    assert "rows without a column that `text` names" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", b'{"text": "a"}\n{', r"rows\.jsonl: line 2 is not valid JSON"),
        ("rows.jsonl", b"{", r"rows\.jsonl: line 1 is not valid JSON"),
        ("rows.csv", b"text,b\na\n", r"rows\.csv: line 2 has 1 cells"),
        ("a.parquet", b"PAR1", r"a\.parquet: no readable Parquet file"),
        ("a.zip", b"PK", r"a\.zip: no readable archive"),
    ],
)
def test_what_is_damaged_is_named(corpus: Path, name: str, content: bytes, said: str) -> None:
    (corpus / name).write_bytes(content)

    with pytest.raises(UserError, match=said):
        collected()


def test_the_preset_for_files_of_ones_own_reads_them_so(corpus: Path) -> None:
    (source,) = yaml.safe_load((ROOT / "conf/corpus/folder.yaml").read_text())["collect"]["sources"]
    (corpus / "x.jsonl").write_text('{"content": "a row"}')
    write_project(Path(), collect__sources=[source])

    main()

    assert [one.text for one in read_documents(Path("data/documents"))] == ["a row"]


def test_a_book_is_cut_where_paragraphs_end(corpus: Path) -> None:
    paragraph = "Es war einmal ein König, der hatte drei Töchter.\n" * 5 + "\n"
    (corpus / "book.txt").write_text("\ufeff" + paragraph * 20)
    (corpus / "page.txt").write_text(paragraph)

    found = collected()

    assert found.pop("page.txt") == paragraph
    assert list(found) == [f"book.txt#{number}" for number in range(1, len(found) + 1)]
    assert "".join(found.values()) == paragraph * 20
    assert all(len(part.encode()) <= 1000 and part.endswith(".\n\n") for part in found.values())
    assert collected(part_bytes=None) == {"book.txt": paragraph * 20, "page.txt": paragraph}


def test_a_book_larger_than_a_document_may_be_is_read_in_parts(corpus: Path) -> None:
    (corpus / "book.txt").write_text("ein Satz. " * 1000)

    write_project(Path(), collect__sources=[FOLDER], collect__max_document_bytes=2000)
    main()

    assert len(list(read_documents(Path("data/documents")))) > 9
    assert left_out() == {}


def test_a_compressed_book_is_cut_by_its_text_and_not_by_its_size_on_the_disk(corpus: Path) -> None:
    text = "ein Satz. " * 1000
    compressed = gzip.compress(text.encode())
    (corpus / "book.txt.gz").write_bytes(compressed)

    assert len(compressed) < 1000
    found = collected()

    assert len(found) > 9
    assert "".join(found.values()) == text


def test_of_a_damaged_book_what_cannot_be_read_is_left_out(corpus: Path) -> None:
    (corpus / "a.txt").write_text("a poem")
    lines = "".join(f"{hashlib.sha256(str(number).encode()).hexdigest()}\n" for number in range(5000))
    (corpus / "book.txt.gz").write_bytes(gzip.compress(lines.encode())[:100_000])
    (corpus / "none.txt.gz").write_bytes(b"no gzip " * 1000)

    found = collected()

    assert found.pop("a.txt") == "a poem"
    in_order = sorted(found, key=lambda path: int(path.rpartition("#")[2]))
    assert len(in_order) > 9
    assert lines.startswith("".join(map(found.__getitem__, in_order)))
    assert left_out() == {"unreadable or damaged": 2}


@pytest.mark.parametrize("text", ["ä" * 5000, "日" * 3000, "x" * 5000, "ein Wort " * 500, "eine Zeile\r\n\r\n" * 500])
def test_no_part_is_cut_within_a_character(corpus: Path, text: str) -> None:
    (corpus / "a.txt").write_bytes(text.encode())

    parts = collected().values()

    assert len(parts) > 3
    assert "".join(parts) == text
    assert all(len(part.encode()) <= 1000 for part in parts)


def test_a_large_file_that_is_no_text_is_left_out_as_one(corpus: Path) -> None:
    (corpus / "a.txt").write_text("a poem")
    (corpus / "picture.png").write_bytes(b"\x89PNG\0" * 5000)
    (corpus / "old.txt").write_bytes("Köln\n".encode("latin-1") * 5000)

    assert collected() == {"a.txt": "a poem"}
    assert left_out() == {"not UTF-8": 2}
