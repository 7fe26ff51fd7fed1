"""Files are read as what their names say, and what gave less than it seems to hold is named."""

import csv
import gzip
import io
import json
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.collect.__main__ import is_allowed
from stages.formats.documents import Document
from stages.formats.rows import NO_VALUE, field_of
from stages.runtime.errors import UserError
from tests.collect.collecting import NO_FIELDS, collect, files, left_out
from tests.small_project import ROOT, write_corpus

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def corpus(project: Path) -> Path:
    (project / "corpus").mkdir()
    return project / "corpus"


def collected(fields: dict[str, str] | None = None, limit: int = 1_000_000, **changes: Any) -> dict[str, Document]:
    """Path below corpus/ -> document."""
    source = files(**changes, fields=NO_FIELDS | (fields or {}))
    return {one.path.removeprefix("corpus/"): one for one in collect(source, collect__max_document_bytes=limit)}


def texts(**changes: Any) -> dict[str, str]:
    return {path: one.text for path, one in collected(**changes).items()}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows in the format that the path's ending says."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([list(rows[0]), *(row.values() for row in rows)])


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": "a"}\n{"text": "b"}',
        b'\n\r\n{"text": "a"}\n{"text": "b"}',
        b'[{"text": "a"},\n{"text": "b"}]',
        b'{"text":\n"a"}',
    ],
)
def test_a_json_file_may_hold_lines_an_array_or_one_object(corpus: Path, content: bytes) -> None:
    (corpus / "c4.json.gz").write_bytes(gzip.compress(content))

    assert sorted(texts().values()) == (["a", "b"] if b'"b"' in content else ["a"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jl", b'{"text": "a", "url": "u"}\n{"text": "b", "url": "v"}\n'),
        ("rows.txt", b'[{"text": "a"}, {"text": "b"},]'),
        ("rows.txt.gz", gzip.compress(b'[{"text": "a"}, {"text": "b"}]')),
        ("other_keys.txt", b'\xef\xbb\xbf\n{"text": "a", "url": "u"}\n{"text": "b"}\nnot JSON'),
        ("metadata.txt", b'{"version": 1}\n{"text": "a"}\n'),
        ("indented.txt", b'{\n "text": "a"\n}\n{\n "text": "b"\n}\n'),
        ("single.txt", b'{"text": "a"}'),
        ("nested.txt", b'{"data": [\n{"text": "a"}]}'),
        ("strings.txt", b'["a",\n "b"]'),
        ("large.txt", b'{"text": "' + b"a word\\n" * 200_000 + b'"}\n{"text": "b"}\n'),
        ("many.txt", b"[" + b'"a", ' * 300_000 + b'"b"]'),
    ],
)
def test_json_under_the_name_of_a_text_is_refused_with_the_name_to_give_it(
    corpus: Path, name: str, content: bytes
) -> None:
    (corpus / name).write_bytes(content)

    with pytest.raises(UserError, match=rf"^corpus/{name}: is JSON, not text: rename it to \.jsonl or \.json, "):
        texts()


def test_other_text_in_brackets_is_text(corpus: Path) -> None:
    contents = ["{ a = 1 }\n{ b = 2 }\n", "[1] a note", "{{template}}\n", '{"a": 1}\n\nprose\n', "{ x }", '{"a']
    contents += ['{"a": f(x),\n' + "x" * 2_000_000]
    for number, content in enumerate(contents):
        (corpus / f"{number}.txt").write_text(content)

    assert texts(limit=3_000_000) == {f"{number}.txt": content for number, content in enumerate(contents)}


def test_a_row_has_the_first_text_that_is_not_blank_and_an_odd_first_row_costs_that_row_alone(
    corpus: Path, capsys: Said
) -> None:
    rows = [{"_meta": {}}, {"text": "a"}, {"text": None}, {"text": None, "content": "b"}, {"text": "c"}]
    rows += [{"text": "\n", "content": "d"}, {"text": "", "content": ""}]
    write_rows(corpus / "rows.jsonl", rows)

    assert texts() == {"rows.jsonl#2": "a", "rows.jsonl#4": "b", "rows.jsonl#5": "c", "rows.jsonl#6": "d"}
    assert left_out() == {"no text in the row": 2, "empty": 1}
    assert "WARNING" not in capsys.readouterr().out


NO_TEXTS = {
    "a.jsonl": (b'{"body": "a", "id": 1}\n{"body": "b", "id": 2}\n', "0 of 2 rows have a text; fields: body, id (int)"),
    "b.csv": (b"id, text,Text\n1,a,b\n", "0 of 1 rows have a text; fields: id,  text, Text"),
    "a.json": (b'{\n "name": "package",\n "version": 1}', "0 of 1 rows have a text; fields: name, version (int)"),
    "b.json": (b"// no JSON", "0 of 1 rows have a text; fields: none"),
}


def test_a_file_that_gave_nothing_is_named_with_its_fields_and_their_types(corpus: Path, capsys: Said) -> None:
    (corpus / "poem.txt").write_text("a poem")
    said = [f"corpus/{name}: {note}" for name, (_, note) in NO_TEXTS.items()]
    for name, (content, _) in NO_TEXTS.items():
        (corpus / name).write_bytes(content)
    for number, column in enumerate((pa.array([["a"], ["b"]]), pa.array([1, 2]), pa.array([{"a": 1}, {"a": 2}]))):
        pq.write_table(pa.table({"text": column}), corpus / f"{number}.parquet")
        kind = type(column[0].as_py()).__name__
        said.append(f"corpus/{number}.parquet: 0 of 2 rows have a text; fields: text ({kind})")

    assert texts() == {"poem.txt": "a poem"}
    lines = capsys.readouterr().out.replace("a text in text or content;", "a text;").splitlines()
    assert {f"WARNING: {note}" for note in said} == {line for line in lines if line.startswith("WARNING")}


@pytest.mark.parametrize(
    ("content", "left", "remedy"),
    [
        ("Köln".encode("cp1252"), 8, "iconv -f cp1252 -t utf-8"),
        ("Köln".encode("utf-16"), 20, "iconv -f utf-16 -t utf-8"),
        ("Köln\n".encode() + b"\xff", 14, "iconv -c -f utf-8 -t utf-8"),
        ("Köln ist schön\n".encode() + b"\xff", 36, "iconv -c -f utf-8 -t utf-8"),
    ],
)
def test_what_is_not_utf_8_is_one_line_with_a_share_an_example_and_a_remedy(
    corpus: Path, capsys: Said, content: bytes, left: int, remedy: str
) -> None:
    (corpus / "poem.txt").write_text("a poem")
    (corpus / ".hidden").write_text("x")
    for name in ("a.txt", "b.txt"):
        (corpus / name).write_bytes(content)

    texts()

    assert (
        f"WARNING: left out 2 files, parts or rows that are not UTF-8 ({left} of {left + 6} bytes), such as "
        f"corpus/a.txt; if they are text, convert them: `{remedy}`"
    ) in capsys.readouterr().out


def test_many_files_without_a_text_are_ten_lines_and_a_count_and_those_of_one_name_one_line(
    corpus: Path, capsys: Said
) -> None:
    (corpus / "poem.txt").write_text("a poem")
    for number in range(15):
        (corpus / f"-{number}").mkdir()
        for name in (f"{number}.json", f"-{number}/package.json"):
            (corpus / name).write_text('{"name": "package"}')

    texts()

    said = capsys.readouterr().out
    assert len(said.splitlines()) == 12
    assert "fields: name (and 14 more of this name)" in said
    assert left_out() == {"no text in the row": 30}


def test_csv_as_spreadsheets_write_it(corpus: Path) -> None:
    first = (b'"the\nid",text\n1,a\n', b"id,text\r1,a\r", b"id,text,,\n1,a,,\n")
    for number, content in enumerate([*first, b"\xef\xbb\xbftext\na\n", b'text\n\n"a"\n']):
        (corpus / f"{number}.csv").write_bytes(content)

    assert texts() == {f"{number}.csv#1": "a" for number in range(5)}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "a"}\n{', r"a\.jsonl: line 2 is not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n[1]', r"a\.jsonl: line 2 is not a JSON object but list"),
        ("a.jsonl", b'{"text": "a", "text": "b"}', r"a\.jsonl: line 1 .* \(the key `text` occurs twice"),
        ("a.jsonl", b'{"text": "caf\xe9"}', r"a\.jsonl: line 1 is not UTF-8: try `iconv -f cp1252"),
        ("a.json", b'{"text": "a"}\n{', r"a\.json: line 2 is not valid JSON"),
        ("a.csv", b"text,b\na\n", r"a\.csv: line 2 has 1 cells, and there are 2 columns"),
        ("a.csv", b"text,b\na,f(a, b)\n", r"a\.csv: line 2 has 3 cells, and there are 2 columns; quote a cell"),
        ("a.csv", b'text,b\na,"open\n', r"a\.csv: line 2 is not valid CSV \(unexpected end of data\)"),
        ("a.csv", b"text\ncaf\xe9\n", r"a\.csv: line \d is not UTF-8: try `iconv -f cp1252"),
        ("a.csv", b"id;text\n1;a, b\n", r"a\.csv: the columns seem to be separated by ';', not by ',': write commas"),
        ("a.csv", b"id\ttext\n1\ta\n", r"a\.csv: the columns seem .* by '\\t', not by ',': rename it to \.tsv"),
        ("a.tsv", b"id,text\n1,a\n", r"a\.tsv: the columns seem .* by ',', not by '\\t': rename it to \.csv"),
        ("a.csv", b"text,a,a\nx,1,2\n", r"a\.csv: several columns are named `a`"),
        ("a.parquet", b"PAR1", r"a\.parquet: not a readable Parquet file"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n', mtime=0)[:-3], r"a\.jsonl\.gz: cannot be read"),
    ],
)
def test_broken_rows_end_the_run_with_file_and_line(corpus: Path, name: str, content: bytes, said: str) -> None:
    (corpus / name).write_bytes(content)

    with pytest.raises(UserError, match=f"^corpus/{said}"):
        texts()


@pytest.mark.parametrize("end", [".jsonl", ".parquet"])
def test_text_path_source_and_license_may_be_nested_and_a_password_in_a_path_is_taken_out(
    corpus: Path, end: str
) -> None:
    repository = {"name": "a/b", "license": "MIT"}
    rows = [{"meta": {"text": "x = 1", "id": "https://bob:s3cr3t@host/a.py?sig=s3cr3t", "repo": repository}}]
    write_rows(corpus / f"rows{end}", [*rows, {"meta": None}])
    fields = {"path": "meta.id", "source": "meta.repo.name", "license": "meta.repo.license"}

    (found,) = collected(fields, text=["meta.text"]).values()

    assert (found.text, found.path, found.source, found.license) == ("x = 1", "https://host/a.py", "a/b", "MIT")
    assert left_out() == {"no text in the row": 1}


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        ({"a.b": {"c": 1}}, "a.b.c", 1),
        ({"a": {"b.c": 1}}, "a.b.c", 1),
        ({"a": {"b": 1}}, "a.b.c", NO_VALUE),
        ({"a": [1]}, "a.0", NO_VALUE),
        ({"a": 0}, "a", 0),
        ({}, "a", NO_VALUE),
    ],
)
def test_names_lead_through_mappings_alone(values: dict[str, Any], name: str, expected: Any) -> None:
    assert field_of(values, name) is expected


@pytest.mark.parametrize("end", [".csv", ".parquet"])
def test_a_table_without_a_column_that_fields_names_is_refused(corpus: Path, end: str) -> None:
    """Otherwise the license of the source, MIT, would be taken for that of every row."""
    write_rows(corpus / f"rows{end}", [{"text": "x = 1", "license": "GPL-3.0-only"}])

    with pytest.raises(UserError, match=rf"^corpus/rows{end}: no column `licens`; it has text, license"):
        collected({"license": "licens"})


def test_a_field_that_no_row_of_json_has_is_named_unless_a_limit_ends_the_source(corpus: Path, capsys: Said) -> None:
    write_rows(corpus / "rows.jsonl", [{"text": "x = 1"}, {"text": "x = 2", "license": "MIT"}])

    collected({"license": "license"})
    collected({"license": "license"}, max_bytes=5)
    assert "no row" not in capsys.readouterr().out
    collected({"license": "licens"})
    said = "WARNING: params.yaml: collect.sources: fields: no row of corpus/rows.jsonl has `licens`"
    assert said in capsys.readouterr().out


def test_of_several_licenses_every_one_must_be_allowed(corpus: Path) -> None:
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
def test_no_license_expression_ends_the_run(words: list[str]) -> None:
    assert is_allowed("".join(words), frozenset(["MIT"])) in (True, False)


def test_what_is_no_text_is_left_out_and_counted_and_line_ends_stay(corpus: Path, capsys: Said) -> None:
    lone, nul = "x = '\ud83d'\n", "x = 'a long string'\n" * 100 + "\0"
    write_rows(corpus / "lone.jsonl", [{"text": lone}, {"text": nul}])
    rows = ["a = 1\r\nb = 2\r\n", "e = '\u2028\x85\x0b'\n", "nul = '\0'\n", "", " \r\n\t"]
    write_rows(corpus / "rows.jsonl", [{"text": text} for text in rows])
    for number, text in enumerate(rows):
        (corpus / f"{number}.py").write_bytes(text.encode())
    binary = pa.array(["x = 'ä'\n".encode(), b"caf\xe9"], pa.binary())
    pq.write_table(pa.table({"text": binary}), corpus / "a.parquet")
    (corpus / "page.html").write_text("<p>a text</p>")
    for name in ("a.zip", "b.tar.gz", "c.TGZ", "d.7z"):
        (corpus / name).write_bytes(b"PK")
    (corpus / "large.txt").write_text("x" * 3000)
    (corpus / "large.txt.gz").write_bytes(gzip.compress(b"x" * 3000))
    with (corpus / "huge.txt").open("wb") as file:
        file.truncate(10**12)

    assert sorted(texts(limit=2500).values()) == sorted([*rows[:2] * 2, "x = 'ä'\n", "<p>a text</p>"])
    assert left_out() == {
        "archive (unpack it)": 4,
        "binary (NUL bytes)": 2,
        "empty": 4,
        "larger than max_document_bytes": 3,
        "not UTF-8": 1,
        "half of a surrogate pair (\\ud800 to \\udfff), which is no character (remove it)": 1,
        "text with a few NUL bytes (`tr -d '\\000'` removes them)": 1,
    }
    said = capsys.readouterr().out
    assert "left out 4: archive (unpack it)" in said
    assert "WARNING: left out 1: half of a surrogate pair" in said
    assert "WARNING: left out 1: text with a few NUL bytes" in said
    assert "WARNING: corpus/page.html: kept with its tags; extract its text first (trafilatura)" in said


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


def test_the_preset_for_files_of_ones_own_reads_them(corpus: Path) -> None:
    (source,) = yaml.safe_load((ROOT / "conf/corpus/folder.yaml").read_text())["collect"]["sources"]
    (corpus / "x.jsonl").write_text('{"content": "a row"}')

    assert [one.text for one in collect(source)] == ["a row"]


PARAGRAPH = "Es war einmal ein König, der hatte drei Töchter.\n" * 5 + "\n"
LINES = "".join(f"{random.Random(number).getrandbits(256):x}\n" for number in range(5000))


@pytest.mark.parametrize(
    "text", [PARAGRAPH * 20, LINES, "ä" * 5000, "日" * 3000, "x" * 5000, "ein Wort " * 500, "eine Zeile\r\n\r\n" * 500]
)
def test_a_book_is_cut_where_paragraphs_end_and_never_within_a_character(corpus: Path, text: str) -> None:
    (corpus / "book.txt.gz").write_bytes(gzip.compress(("\ufeff" + text).encode()))
    (corpus / "page.txt").write_text("a poem")

    found = texts(part_bytes=1000, limit=2000)

    assert found.pop("page.txt") == "a poem"
    parts = [found[f"book.txt.gz#{number}"] for number in range(1, len(found) + 1)]
    assert "".join(parts) == text
    assert all(len(part.encode()) <= 1000 for part in parts)
    assert all(part.endswith(".\n\n") for part in parts) is (text == PARAGRAPH * 20)
    assert texts() == {"book.txt.gz": text, "page.txt": "a poem"}


def test_a_flaw_costs_the_part_that_has_it_and_a_binary_file_is_left_out_as_one(corpus: Path, capsys: Said) -> None:
    (corpus / "picture.png").write_bytes(b"\x89PNG\0" * 5000)
    (corpus / "wide.txt").write_text("ein Wort\n" * 500, encoding="utf-16")
    for name, flaw in (("blank", b"\n" * 1000), ("byte", b"\xff"), ("nul", b"\0")):
        (corpus / f"{name}.txt").write_bytes(flaw + LINES[:5000].encode())

    found = texts(part_bytes=1000, limit=2000)

    rest = {
        name: "".join(found[path] for path in sorted(found) if path.startswith(name))
        for name in ("blank", "byte", "nul")
    }
    assert rest["blank"] == LINES[:5000]
    for name in ("byte", "nul"):
        assert 4000 <= len(rest[name]) < 5000
        assert LINES[:5000].endswith(rest[name])
    nuls = "text with a few NUL bytes (`tr -d '\\000'` removes them)"
    assert left_out() == {"binary (NUL bytes)": 1, "empty": 1, "not UTF-8": 2, nuls: 1}
    assert f"WARNING: left out 1: {nuls}" in capsys.readouterr().out


@pytest.mark.parametrize("part_bytes", [None, 1000])
def test_a_damaged_file_of_text_ends_the_run(corpus: Path, part_bytes: int | None) -> None:
    (corpus / "a.txt").write_text("a poem")
    (corpus / "broken.txt.gz").write_bytes(gzip.compress(LINES.encode())[:-20])

    with pytest.raises(UserError, match=r"broken\.txt\.gz: cannot be read \(.*\); correct or remove it"):
        texts(part_bytes=part_bytes)
