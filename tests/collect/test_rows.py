"""What a row says of itself: fields nested in others, texts as bytes, lists of licences."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.collect.__main__ import main
from stages.collect.source_kinds import MISSING, field_of
from stages.formats.documents import Document, read_documents
from stages.formats.reports import read_json
from stages.runtime.entry import UserError
from tests.small_project import FILES_SOURCE, write_project

ORIGIN = {name: value for name, value in FILES_SOURCE.items() if name not in ("kind", "globs")}
NO_FIELDS: dict[str, str | None] = {"source": None, "path": None, "license": None}
KINDS = ["jsonl", "parquet"]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def collect(kind: str, rows: list[dict[str, Any]], text: str, **fields: str) -> list[Document]:
    """Write rows as a file of this kind, collect it, and give the documents in the order of the texts."""
    name = f"rows.{kind}"
    if kind == "jsonl":
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), name)
    source = ORIGIN | {"kind": kind, "globs": [name], "text": text, "fields": NO_FIELDS | fields}
    write_project(Path(), collect__sources=[source])
    main()
    return sorted(read_documents(Path("data/documents")), key=lambda document: document.text)


def left_out() -> dict[str, int]:
    counts: dict[str, int] = read_json(Path("reports/collect.json"))["left_out"]
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_text_path_and_licence_may_be_nested(kind: str) -> None:
    rows = [{"meta": {"text": f"x = {n}", "id": n, "repo": {"name": "a/b", "license": "MIT"}}, "n": n} for n in (0, 1)]

    found = collect(kind, rows, "meta.text", path="meta.id", source="meta.repo.name", license="meta.repo.license")

    assert [(one.text, one.path, one.source, one.license) for one in found] == [
        ("x = 0", "0", "a/b", "MIT"),
        ("x = 1", "1", "a/b", "MIT"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_whose_name_has_a_dot_comes_before_a_nested_one(kind: str) -> None:
    rows = [{"meta.text": "x = 1", "meta": {"text": "nested"}}]

    assert [one.text for one in collect(kind, rows, "meta.text")] == ["x = 1"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_whose_outer_field_is_null_has_no_text(kind: str) -> None:
    assert len(collect(kind, [{"meta": {"text": "x = 1"}}, {"meta": None}], "meta.text")) == 1
    assert left_out() == {"no text in the row": 1}


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("jsonl", r"^rows\.jsonl#1: no field `meta\.content`; it has meta$"),
        ("parquet", r"^rows\.parquet: no column `meta\.content`; it has meta\.text$"),
    ],
)
def test_a_nested_field_that_is_missing_is_named(kind: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        collect(kind, [{"meta": {"text": "x = 1"}}], "meta.content")


def test_a_csv_file_without_a_column_that_fields_name_is_refused() -> None:
    """Else the licence of the source, MIT, would be taken for that of every row."""
    Path("rows.csv").write_text("text,license\nx = 1,GPL-3.0-only\n")
    source = ORIGIN | {"kind": "csv", "globs": ["rows.csv"], "text": "text"}
    source["fields"] = NO_FIELDS | {"license": "licence"}
    write_project(Path(), collect__sources=[source])

    with pytest.raises(UserError, match=r"^rows\.csv: no column `licence`; it has license, text"):
        main()


def test_a_field_that_no_row_of_json_has_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [{"text": f"x = {n}", "license": "MIT"} | ({"id": "a"} if n else {}) for n in (0, 1)]

    found = collect("jsonl", rows, "text", path="id", license="licence")

    assert sorted(one.path for one in found) == ["a", "rows.jsonl#1"]
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert notes == ["note: params.yaml: collect.sources: fields: no row of rows.jsonl has `licence`"]


def test_so_it_is_of_a_file_whose_name_is_not_utf_8(capsys: pytest.CaptureFixture[str]) -> None:
    Path(os.fsdecode(b"rows-\xe9.jsonl")).write_text('{"text": "x = 1"}\n')
    source = ORIGIN | {"kind": "jsonl", "globs": ["rows-*"], "text": "text", "fields": NO_FIELDS | {"path": "id"}}
    write_project(Path(), collect__sources=[source])
    main()

    assert "no row of rows-\\udce9.jsonl has `id`\n" in capsys.readouterr().out


def test_a_column_within_what_holds_none_is_named() -> None:
    with pytest.raises(UserError, match=r"^rows\.parquet: no column `text\.content`; it has "):
        collect("parquet", [{"text": "x = 1"}], "text.content")


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


@pytest.mark.parametrize("of_type", [pa.binary(), pa.large_binary()])
def test_a_binary_column_is_text_where_it_is_utf_8(of_type: pa.DataType) -> None:
    texts = ["x = 'ä'\n".encode(), b"caf\xe9", None]
    table = pa.table({"content": pa.array(texts, of_type), "path": pa.array([b"a", b"b", b"c"], of_type)})
    pq.write_table(table, "rows.parquet")
    source = ORIGIN | {"kind": "parquet", "globs": ["rows.parquet"], "text": "content"}
    write_project(Path(), collect__sources=[source | {"fields": NO_FIELDS | {"path": "path"}}])
    main()

    assert [(one.path, one.text) for one in read_documents(Path("data/documents"))] == [("a", "x = 'ä'\n")]
    assert left_out() == {"not UTF-8": 1, "no text in the row": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_of_several_licences_every_one_must_be_allowed(kind: str) -> None:
    licenses: dict[str, list[str | None]] = {
        "one": ["MIT"],
        "both": ["MIT", "Apache-2.0"],
        "twice": ["MIT", "MIT"],
        "choice": ["MIT OR GPL-3.0-only", "Apache-2.0"],
        "unknown": [],
        "copyleft": ["MIT", "GPL-3.0-only"],
        "not known": ["MIT", None],
    }
    rows = [{"content": name, "licenses": value} for name, value in licenses.items()]

    found = {one.text: one.license for one in collect(kind, rows, "content", license="licenses")}

    assert found == {
        "one": "MIT",
        "both": "MIT AND Apache-2.0",
        "twice": "MIT",
        "choice": "(MIT OR GPL-3.0-only) AND Apache-2.0",
        "unknown": "MIT",  # the source's
    }
    assert left_out() == {
        "licence not allowed: MIT AND GPL-3.0-only": 1,
        "licence not allowed: MIT AND NOASSERTION": 1,
    }
