"""Every stage reads the same rows from a file, in each format and compression."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.clean.decontamination import evaluation_items
from stages.collect.sources.files import Files
from stages.evaluate.likelihood.documents import named_set
from stages.formats import rows
from stages.formats.evaluation.problems import read_problems
from stages.formats.rows import read_row_file
from stages.runtime.errors import UserError
from tests.small_project import FILES_SOURCE

ROWS = [{"text": 'one "text",\nof two lines'}, {"text": " \n\t"}, {"text": "another\ttext"}]


def as_table(delimiter: str) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerows([["text"], *(row.values() for row in ROWS)])
    return text.getvalue().encode()


def as_parquet() -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), content)
    return content.getvalue()


CONTENTS: dict[str, Callable[[], bytes]] = {
    ".jsonl": lambda: "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
    ".json": lambda: json.dumps(ROWS).encode(),
    ".csv": lambda: as_table(","),
    ".tsv": lambda: as_table("\t"),
    ".parquet": as_parquet,
}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("packed", COMPRESS)
@pytest.mark.parametrize("end", CONTENTS)
def test_corpora_held_out_sets_and_decontamination_read_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, packed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(f"X{end.upper()}{packed}")
    file.write_bytes(COMPRESS[packed](CONTENTS[end]()))
    written = [row["text"] for row in ROWS]

    items = Files.model_validate(FILES_SOURCE | {"globs": [str(file)], "kind": "files"}).items(10**6)

    assert [row["text"] for _, row in read_row_file(file)] == written
    assert [item.content for item in items] == written
    assert [text for _, text in evaluation_items(file, ["text"])] == written
    assert [*named_set("s", file).texts] == [text for text in written if text.strip()]


@pytest.mark.parametrize("packed", COMPRESS)
def test_text_is_read_compressed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"X.TXT{packed}").write_bytes(COMPRESS[packed](b"a text"))

    items = Files.model_validate(FILES_SOURCE | {"globs": [f"X.TXT{packed}"]}).items(10**6)

    assert [(item.path, item.content) for item in items] == [(f"X.TXT{packed}", b"a text")]


def test_problems_are_read_from_any_file_of_rows(tmp_path: Path) -> None:
    row = {"task_id": 1, "text": "Return one.", "code": "def one(): ...", "test_list": ["assert one() == 1"]}
    (tmp_path / "sanitized.json").write_text(json.dumps([row]))
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "mbpp.parquet")

    assert read_problems(tmp_path / "sanitized.json") == read_problems(tmp_path / "mbpp.parquet")


def test_a_json_value_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ARRAY_BYTES", 2**20)
    (tmp_path / "a.json").write_text(json.dumps([{"text": "x" * 2**20}]))

    with pytest.raises(UserError, match=r"a\.json: one JSON value of more than 1 MB: make it JSON lines"):
        list(read_row_file(tmp_path / "a.json"))
