"""Files are read as what their names say, and what gave less than it seems to hold is named."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.collect.__main__ import main
from stages.collect.gather import is_allowed
from stages.formats.documents import Document, read_documents
from stages.formats.reports import read_json
from stages.formats.rows import MISSING, field_of
from stages.runtime.entry import UserError
from tests.small_project import FILES_SOURCE, ROOT, write_corpus, write_project

NO_FIELDS: dict[str, str | None] = {"source": None, "path": None, "license": None}
ROWS_ENDINGS = [".jsonl", ".json", ".csv", ".tsv", ".parquet"]


@pytest.fixture(autouse=True)
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    return tmp_path / "corpus"


def collected(fields: dict[str, str] | None = None, limit: int = 1_000_000, **changes: Any) -> dict[str, Document]:
    """Path below corpus/ -> document."""
    changes |= {"fields": NO_FIELDS | (fields or {})}
    write_project(Path(), collect__sources=[FILES_SOURCE | changes], collect__max_document_bytes=limit)
    main()
    return {one.path.removeprefix("corpus/"): one for one in read_documents(Path("data/documents"))}


def texts(**changes: Any) -> dict[str, str]:
    return {path: one.text for path, one in collected(**changes).items()}


def left_out() -> dict[str, int]:
    counts: dict[str, int] = read_json(Path("reports/collect.json"))["left_out"]
    return counts


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows in the format that the path's ending says."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=2))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        cells = [list(rows[0]), *(row.values() for row in rows)]
        quoted = [["" if cell is None else '"' + str(cell).replace('"', '""') + '"' for cell in row] for row in cells]
        between = "\t" if path.suffix == ".tsv" else ","
        path.write_text("".join(between.join(row) + "\n" for row in quoted), newline="")


def zstd(content: bytes) -> bytes:
    packed: bytes = pa.compress(content, codec="zstd", asbytes=True)
    return packed


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


@pytest.mark.parametrize("packed", COMPRESS)
@pytest.mark.parametrize("end", [".txt", *ROWS_ENDINGS])
def test_text_and_rows_are_read_by_the_ending_also_compressed(corpus: Path, end: str, packed: str) -> None:
    found = ['one "text",\nof two lines', "another\ttext"]
    if end == ".txt":
        (corpus / "x.txt").write_text(found[0])
    else:
        write_rows(corpus / f"x{end}", [{"id": 1, "content": found[0]}, {"id": 2, "content": found[1]}])
    content = (corpus / f"x{end}").read_bytes()
    (corpus / f"x{end}").unlink()
    (corpus / f"X{end.upper()}{packed}").write_bytes(COMPRESS[packed](content))

    assert list(texts().values()) == (found[:1] if end == ".txt" else found) or sorted(texts().values()) == sorted(
        found
    )


@pytest.mark.parametrize(
    "content", [b'{"text": "a"}\n{"text": "b"}', b'[{"text": "a"},\n{"text": "b"}]', b'{"text":\n"a"}']
)
def test_a_json_file_may_hold_lines_an_array_or_one_object(corpus: Path, content: bytes) -> None:
    (corpus / "c4.json.gz").write_bytes(gzip.compress(content))

    assert sorted(texts().values()) == (["a", "b"] if b'"b"' in content else ["a"])


@pytest.mark.parametrize("name", ["rows.jl", "rows.jsonlines", "rows.txt", "rows.txt.gz"])
@pytest.mark.parametrize(
    "content", [b'{"text": "a", "url": "u"}\n{"text": "b", "url": "v"}\n', b'[{"text": "a"}, {"text": "b"}]']
)
def test_text_that_looks_like_json_rows_is_refused_with_the_name_to_give_it(
    corpus: Path, name: str, content: bytes
) -> None:
    (corpus / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)

    with pytest.raises(UserError, match=rf"^corpus/{name}: looks like JSON rows: rename it to \.jsonl"):
        texts()


@pytest.mark.parametrize("content", ["{ a = 1 }\n{ b = 2 }\n", '["a", "b"]', "{{template}}\n", '{"a": 1}\n\nprose\n'])
def test_other_text_in_brackets_is_text(corpus: Path, content: str) -> None:
    (corpus / "a.txt").write_text(content)

    assert texts() == {"a.txt": content}


def test_an_odd_first_row_costs_that_row_alone_and_a_missing_text_is_a_null_text(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [
        {"_meta": {}},
        {"text": "a"},
        {"text": None},
        {"text": None, "content": "b"},
    ]
    write_rows(corpus / "rows.jsonl", [*rows, {"text": "c"}])

    assert texts() == {"rows.jsonl#2": "a", "rows.jsonl#4": "b", "rows.jsonl#5": "c"}
    assert left_out() == {"no text in the row": 2}
    assert "WARNING" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.jsonl",
            b'{"body": "a", "id": 1}\n{"body": "b", "id": 2}\n',
            "0 of 2 rows have a text; fields: body, id",
        ),
        ("a.csv", b"id;text\n1;a\n2;b\n", "0 of 2 rows have a text; fields: id;text"),
        ("a.csv", b"id, text,Text\n1,a,b\n", "0 of 1 rows have a text; fields: id,  text, Text"),
        (
            "a.json",
            b'{\n "name": "package",\n "version": 1}',
            "0 of 1 rows have a text; fields: name, version",
        ),
        ("a.json", b"// no JSON", "0 of 1 rows have a text; fields: none"),
    ],
)
def test_a_file_that_gave_nothing_is_named_with_its_fields(
    corpus: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, said: str
) -> None:
    (corpus / "poem.txt").write_text("a poem")
    (corpus / name).write_bytes(content)

    assert texts() == {"poem.txt": "a poem"}
    assert f"WARNING: corpus/{name}: {said}".replace("a text;", "a text in text or content;") in capsys.readouterr().out


@pytest.mark.parametrize("column", [pa.array([["a"], ["b"]]), pa.array([1, 2]), pa.array([{"a": 1}, {"a": 2}])])
def test_a_column_that_holds_no_texts_is_named_with_its_type(
    corpus: Path, capsys: pytest.CaptureFixture[str], column: pa.Array
) -> None:
    (corpus / "poem.txt").write_text("a poem")
    pq.write_table(pa.table({"text": column}), corpus / "a.parquet")
    stored = str(column.type).replace("item", "element")

    assert texts() == {"poem.txt": "a poem"}
    assert f"0 of 2 rows have a text in text or content; fields: text: {stored}" in capsys.readouterr().out


@pytest.mark.parametrize(("encoding", "left"), [("cp1252", 8), ("utf-16", 20)])
def test_what_is_not_utf_8_is_one_line_with_a_share_an_example_and_a_remedy(
    corpus: Path, capsys: pytest.CaptureFixture[str], encoding: str, left: int
) -> None:
    (corpus / "poem.txt").write_text("a poem")
    (corpus / ".hidden").write_text("x")
    for name in ("a.txt", "b.txt"):
        (corpus / name).write_bytes("Köln".encode(encoding))

    texts()

    assert (
        f"WARNING: left out 2 files or rows that are not UTF-8 ({left} of {left + 6} bytes), such as corpus/a.txt; "
        f"if they are text: `iconv -f {encoding} -t utf-8`"
    ) in capsys.readouterr().out


def test_many_files_without_a_text_are_ten_lines_and_a_count_and_those_of_one_name_one_line(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "poem.txt").write_text("a poem")
    for number in range(15):
        (corpus / f"{number}.json").write_text('{"name": "package"}')
        (corpus / f"-{number}").mkdir()
        (corpus / f"-{number}/package.json").write_text('{"name": "package"}')

    texts()

    said = capsys.readouterr().out
    assert len(said.splitlines()) == 12
    assert "fields: name (and 14 more of this name)" in said
    assert left_out() == {"no text in the row": 30}


@pytest.mark.parametrize(
    ("content", "said"), [("id\ttext\n1\ta\n2\tb\n", True), ("\ta\n\tb\n\tc\n", False), ("a\tb\nc\nd\te\n", False)]
)
def test_a_table_that_is_named_as_text_is_named(
    corpus: Path, capsys: pytest.CaptureFixture[str], content: str, said: bool
) -> None:
    (corpus / "a.txt").write_text(content)

    texts()

    assert ("corpus/a.txt: looks like a table: rename it to .tsv" in capsys.readouterr().out) is said


@pytest.mark.parametrize(
    "content",
    [
        b'"the\nid",text\n1,a\n',
        b"id,text\r1,a\r",
        b"id,text,,\n1,a,,\n",
        b"\xef\xbb\xbftext\na\n",
        b'text\n\n"a"\n',
    ],
)
def test_csv_as_spreadsheets_write_it(corpus: Path, content: bytes) -> None:
    (corpus / "a.csv").write_bytes(content)

    assert list(texts().values()) == ["a"]


def test_a_stray_quote_that_swallows_thousands_of_lines_is_named(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "a.csv").write_text('text\n"a\n' + "b\n" * 2000 + '"\nc\n')

    texts()

    assert "WARNING: corpus/a.csv: the row at line 2 has 2,001 lines: a stray quote?" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "a"}\n{', r"a\.jsonl: line 2 is not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n[1]', r"a\.jsonl: line 2 is not a JSON object but list"),
        (
            "a.jsonl",
            b'{"text": "a", "text": "b"}',
            r"a\.jsonl: line 1 .* \(the key `text` is there twice",
        ),
        ("a.json", b'{"text": "a"}\n{', r"a\.json: line 2 is not valid JSON"),
        ("a.csv", b"text,b\na\n", r"a\.csv: line 2 has 1 cells, and there are 2 columns"),
        ("a.csv", b"text,b\na,f(a, b)\n", r"a\.csv: line 2 has 3 cells, and there are 2 columns; quote a cell"),
        ("a.csv", b'text,b\na,"open\n', r"a\.csv: line 2 is not valid CSV \(unexpected end of data\)"),
        ("a.csv", b"text\ncaf\xe9\n", r"a\.csv: line \d is not UTF-8: `iconv"),
        ("a.csv", "text\na\n".encode("utf-16"), r"a\.csv: line 1 is not UTF-8: `iconv"),
        ("a.csv", b"text,a,a\nx,1,2\n", r"a\.csv: several columns are named `a`"),
        ("a.parquet", b"PAR1", r"a\.parquet: no readable Parquet file"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n', mtime=0)[:-3], r"a\.jsonl\.gz: cannot be read"),
    ],
)
def test_broken_rows_end_the_run_with_file_and_line(corpus: Path, name: str, content: bytes, said: str) -> None:
    (corpus / name).write_bytes(content)

    with pytest.raises(UserError, match=f"^corpus/{said}"):
        texts()


def test_archives_are_left_out_and_named(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "poem.txt").write_text("a poem")
    for name in ("a.zip", "b.tar.gz", "c.TGZ", "d.7z"):
        (corpus / name).write_bytes(b"PK")

    assert texts() == {"poem.txt": "a poem"}
    assert left_out() == {"archive (unpack it)": 4}
    assert "left out 4: archive (unpack it)" in capsys.readouterr().out


@pytest.mark.parametrize("end", [".jsonl", ".parquet"])
def test_text_path_source_and_licence_may_be_nested(corpus: Path, end: str) -> None:
    rows = [{"meta": {"text": f"x = {n}", "id": f"{n}", "repo": {"name": "a/b", "license": "MIT"}}} for n in (0, 1)]
    write_rows(corpus / f"rows{end}", [*rows, {"meta": None}])
    fields = {"path": "meta.id", "source": "meta.repo.name", "license": "meta.repo.license"}

    found = collected(fields, text=["meta.text"])

    assert sorted((one.text, one.path, one.source, one.license) for one in found.values()) == [
        ("x = 0", "0", "a/b", "MIT"),
        ("x = 1", "1", "a/b", "MIT"),
    ]
    assert left_out() == {"no text in the row": 1}


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        ({"a.b": {"c": 1}}, "a.b.c", 1),
        ({"a": {"b.c": 1}}, "a.b.c", 1),
        ({"a": {"b": 1}}, "a.b.c", MISSING),
        ({"a": [1]}, "a.0", MISSING),
        ({"a": 0}, "a", 0),
        ({}, "a", MISSING),
    ],
)
def test_names_lead_through_mappings_alone(values: dict[str, Any], name: str, expected: Any) -> None:
    assert field_of(values, name) is expected


@pytest.mark.parametrize("end", [".csv", ".parquet"])
def test_a_table_without_a_column_that_fields_names_is_refused(corpus: Path, end: str) -> None:
    """Otherwise the licence of the source, MIT, would be taken for that of every row."""
    write_rows(corpus / f"rows{end}", [{"text": "x = 1", "license": "GPL-3.0-only"}])

    with pytest.raises(UserError, match=rf"^corpus/rows{end}: no column `licence`; it has text, license"):
        collected({"license": "licence"})


def test_a_field_that_no_row_of_json_has_is_named_unless_a_limit_ends_the_source(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(corpus / "rows.jsonl", [{"text": "x = 1"}, {"text": "x = 2", "license": "MIT"}])

    collected({"license": "license"})
    collected({"license": "license"}, max_bytes=5)
    assert "no row" not in capsys.readouterr().out
    collected({"license": "licence"})
    assert "WARNING: params.yaml: collect.sources: fields: no row of corpus/rows.jsonl has `licence`" in (
        capsys.readouterr().out
    )


def test_of_several_licences_every_one_must_be_allowed(corpus: Path) -> None:
    licenses: dict[str, list[str | None]] = {
        "both": ["MIT", "Apache-2.0"],
        "twice": ["MIT", "MIT"],
        "choice": ["MIT OR GPL-3.0-only", "Apache-2.0"],
        "unknown": [],
        "copyleft": ["MIT", "GPL-3.0-only"],
        "not known": ["MIT", None],
    }
    write_rows(corpus / "rows.jsonl", [{"text": name, "licenses": value} for name, value in licenses.items()])

    assert {one.text: one.license for one in collected({"license": "licenses"}).values()} == {
        "both": "MIT AND Apache-2.0",
        "twice": "MIT",
        "choice": "(MIT OR GPL-3.0-only) AND Apache-2.0",
        "unknown": "MIT",  # the source's
    }


@settings(max_examples=300)
@given(words=st.lists(st.sampled_from(["MIT", "AND", "OR", "WITH", "(", ")", " ", ":", "+", "é", "\0"])))
def test_whatever_a_row_calls_its_licence_is_judged(words: list[str]) -> None:
    assert is_allowed("".join(words), frozenset(["MIT"])) in (True, False)


def test_a_password_in_the_path_that_a_row_names_is_taken_out(corpus: Path) -> None:
    write_rows(corpus / "rows.jsonl", [{"text": "x", "path": "https://bob:s3cr3t@host/a.py?sig=s3cr3t"}])

    assert list(collected({"path": "path"})) == ["https://host/a.py"]


def test_a_binary_column_is_text_if_it_is_utf_8(corpus: Path) -> None:
    pq.write_table(pa.table({"text": pa.array(["x = 'ä'\n".encode(), b"caf\xe9"], pa.binary())}), corpus / "a.parquet")

    assert texts() == {"a.parquet#1": "x = 'ä'\n"}
    assert left_out() == {"not UTF-8": 1}


def test_line_ends_stay_and_nul_bytes_and_empty_texts_are_left_out(corpus: Path) -> None:
    rows = ["a = 1\r\nb = 2\r\n", "e = '\u2028\x85\x0b'\n", "nul = '\0'\n", "", " \r\n\t"]
    write_rows(corpus / "rows.jsonl", [{"text": text} for text in rows])
    for number, text in enumerate(rows):
        (corpus / f"{number}.py").write_bytes(text.encode())

    assert sorted(texts().values()) == sorted(rows[:2] * 2)
    assert left_out() == {"binary (NUL bytes)": 2, "empty": 4}


def test_a_name_that_is_not_utf_8_is_written_out(corpus: Path) -> None:
    (corpus / os.fsdecode(b"caf\xe9.py")).write_text("x = 1\n")
    (corpus / os.fsdecode(b"vide\xe9.py")).write_text("")

    assert texts() == {"caf\\udce9.py": "x = 1\n"}
    assert "mine,corpus/vide\\udce9.py,empty\n" in Path("data/left_out.csv").read_text()


def test_a_line_of_a_gigabyte_is_left_out_and_never_held_in_memory(corpus: Path) -> None:
    with (corpus / "rows.jsonl").open("wb") as file:  # a hole, which takes no space on the disk
        file.write(b'{"text": "x = 1"}\n')
        file.seek(2**30, os.SEEK_CUR)
        file.write(b'\n{"text": "y = 2"}\n')
    tracemalloc.start()
    found = texts(limit=20_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert found == {"rows.jsonl#1": "x = 1", "rows.jsonl#3": "y = 2"}
    assert peak < 20e6
    assert left_out() == {"larger than max_document_bytes": 1}


def test_text_that_is_too_large_or_damaged_is_left_out(corpus: Path) -> None:
    (corpus / "a.txt").write_text("a poem")
    (corpus / "large.txt").write_text("x" * 300)
    (corpus / "large.txt.gz").write_bytes(gzip.compress(b"x" * 300))
    (corpus / "cut_off.txt.gz").write_bytes(gzip.compress(b"some text")[:-1])
    with (corpus / "huge.txt").open("wb") as file:
        file.truncate(10**12)

    assert texts(limit=200) == {"a.txt": "a poem"}
    damaged = "unreadable, or not compressed as its name says"
    assert left_out() == {"larger than max_document_bytes": 3, damaged: 1}


@pytest.mark.parametrize("end", [".jsonl", ".csv", ".parquet"])
def test_a_damaged_file_is_read_or_refused_by_its_name_and_never_ends_in_a_traceback(corpus: Path, end: str) -> None:
    write_corpus(Path(), 1)
    path, draw = corpus / f"rows{end}", random.Random(0)
    write_rows(path, [{"text": f"name = 'é{number}'\n" * 20} for number in range(20)])
    whole, refusals = path.read_bytes(), []

    for _ in range(15):
        changed = bytearray(whole)
        changed[draw.randrange(len(changed))] = draw.randrange(256)
        del changed[draw.randrange(len(changed) // 2, len(changed)) :]
        path.write_bytes(changed)
        try:
            texts()
        except UserError as error:
            refusals.append(str(error))

    assert refusals
    assert [said for said in refusals if not said.startswith("corpus/rows") or len(said.splitlines()) > 1] == []


def test_the_preset_for_files_of_ones_own_reads_them(corpus: Path) -> None:
    (source,) = yaml.safe_load((ROOT / "conf/corpus/folder.yaml").read_text())["collect"]["sources"]
    (corpus / "x.jsonl").write_text('{"content": "a row"}')
    write_project(Path(), collect__sources=[source])

    main()

    assert [one.text for one in read_documents(Path("data/documents"))] == ["a row"]


def test_a_book_is_cut_where_paragraphs_end(corpus: Path) -> None:
    paragraph = "Es war einmal ein König, der hatte drei Töchter.\n" * 5 + "\n"
    (corpus / "book.txt").write_text("\ufeff" + paragraph * 20)
    (corpus / "page.txt").write_text(paragraph)

    found = texts(part_bytes=1000, limit=2000)

    assert found.pop("page.txt") == paragraph
    parts = [found[f"book.txt#{number}"] for number in range(1, len(found) + 1)]
    assert "".join(parts) == paragraph * 20
    assert all(len(part.encode()) <= 1000 and part.endswith(".\n\n") for part in parts)
    assert texts() == {"book.txt": paragraph * 20, "page.txt": paragraph}


def test_a_compressed_book_is_cut_by_its_text_and_a_damaged_one_is_left_out(corpus: Path) -> None:
    lines = "".join(f"{random.Random(number).getrandbits(256):x}\n" for number in range(5000))
    (corpus / "whole.txt.gz").write_bytes(gzip.compress(lines.encode()))
    (corpus / "broken.txt.gz").write_bytes(gzip.compress(lines.encode())[:100_000])

    found = texts(part_bytes=1000)

    assert "".join(found[f"whole.txt.gz#{number}"] for number in range(1, len(found) + 1)) == lines
    assert left_out() == {"unreadable, or not compressed as its name says": 1}


@pytest.mark.parametrize("text", ["ä" * 5000, "日" * 3000, "x" * 5000, "ein Wort " * 500, "eine Zeile\r\n\r\n" * 500])
def test_no_part_is_cut_within_a_character(corpus: Path, text: str) -> None:
    (corpus / "a.txt").write_bytes(text.encode())

    found = texts(part_bytes=1000)

    assert "".join(found[f"a.txt#{number}"] for number in range(1, len(found) + 1)) == text
    assert all(len(part.encode()) <= 1000 for part in found.values())


def test_a_large_file_that_is_no_text_is_left_out_as_one(corpus: Path) -> None:
    (corpus / "a.txt").write_text("a poem")
    (corpus / "picture.png").write_bytes(b"\x89PNG\0" * 5000)
    (corpus / "old.txt").write_bytes("Köln\n".encode("latin-1") * 5000)

    assert texts(part_bytes=1000) == {"a.txt": "a poem"}
    assert left_out() == {"not UTF-8": 1, "binary (NUL bytes)": 1}


def test_a_flipped_bit_in_a_parquet_file_with_checksums_never_changes_a_document(corpus: Path) -> None:
    rows = [f"name_{number} = 'value {number * 7919}'\n" for number in range(300)]
    content = io.BytesIO()
    pq.write_table(pa.table({"text": rows}), content, compression="none", write_page_checksum=True)
    data, draw, refused = content.getvalue(), random.Random(8), 0

    for _ in range(10):
        flipped = bytearray(data)
        flipped[draw.randrange(4, len(data) // 2)] ^= 1 << draw.randrange(8)
        (corpus / "a.parquet").write_bytes(bytes(flipped))
        try:
            assert sorted(texts().values()) == sorted(rows)
        except UserError:
            refused += 1

    assert refused > 5
