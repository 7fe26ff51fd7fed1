"""Further held-out sets, files and folders of documents that params.yaml names; and how documents become windows."""

import gzip
import json
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stages.evaluate.likelihood.documents import (
    Window,
    WindowSizes,
    batches,
    document_windows,
    encoded,
    lost_share,
    named_set,
)
from stages.formats.documents import document_id
from stages.runtime.atomic import LFS_POINTER
from stages.runtime.errors import UserError


def write_jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_jsonl_parquet_and_text_files_of_a_folder_are_one_set_in_the_order_of_their_paths(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "b.jsonl", {"text": "two", "source": "own"}, {"text": " \n"}, {"text": "three", "path": "x.py"}
    )
    pq.write_table(pa.table({"text": ["four\u2028"], "source": ["rows"]}), tmp_path / "c.parquet")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one.py").write_text("one", encoding="utf-8")
    (tmp_path / ".hidden").write_bytes(b"\xff")

    documents = list(named_set("mine", tmp_path).read())

    assert [(entry.text, entry.source, entry.path) for entry in documents] == [
        ("one", "mine", "a/one.py"),
        ("two", "own", "b.jsonl#1"),
        ("three", "mine", "x.py"),
        ("four\u2028", "rows", "c.parquet#1"),
    ]


def test_a_set_is_identified_by_its_texts_and_not_by_the_files_they_are_in(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", {"text": "é"}, {"text": "x"})
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["é", "x"]}), table)

    first, second = (named_set("s", path) for path in (rows, table))

    assert first.sha256 == second.sha256
    assert first.facts["id"].tolist() == [document_id("é"), document_id("x")]
    assert first.facts["bytes"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.jsonl", b'{"text": "a"}\n{"body": "b"}\n', "s.jsonl#2: no text in a field `text`; it has body"),
        ("s.jsonl", b'{"text": null}\n', "s.jsonl#1: no text in a field `text`; that is NoneType"),
        ("s.jsonl", b'{"text": "a", "source": "\\ud800"}\n', "s.jsonl#1: half of a surrogate pair"),
        ("s.jsonl", b"not json\n", "s.jsonl: line 1 is not valid JSON (Expecting value"),
        ("s.parquet", b"not parquet", "s.parquet: not a readable Parquet file ("),
        ("s.txt", b"\xff", "s.txt: not UTF-8: try `iconv -f cp1252 -t utf-8`"),
        ("s.txt", b'{"text": "a"}\n{"text": "b"}\n', "s.txt: is JSON, not text: rename it to .jsonl or .json"),
        ("s.json", b'{"data": [{"text": "a"}]}', "s.json#1: no text in a field `text`; it has data"),
        ("s.json", b'["a", "b"]', "s.json#1: no text in a field `text`"),
        ("s.csv", b"body\na\n", "s.csv#1: no text in a field `text`; it has body"),
        ("s.jsonl.gz", gzip.compress(b'{"text": "a"}\n', mtime=0)[:-3], "s.jsonl.gz: cannot be read ("),
        ("s.jsonl", LFS_POINTER, "s.jsonl: Git LFS pointer, not the data (`git lfs pull` downloads it)"),
        ("s.txt", b"", "has no text; add documents, or remove `s` from evaluate.sets"),
    ],
)
def test_what_is_no_set_of_documents_is_refused_with_its_name(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(UserError, match=re.escape(message)):
        named_set("s", tmp_path / name).require_text()


@pytest.mark.parametrize(("name", "content"), [("s.txt", "text"), ("s.jsonl", '{"text": "text"}\r\n')])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(content.encode("utf-8-sig"))

    assert [*named_set("s", tmp_path / name).texts] == ["text"]


def test_a_file_whose_name_is_not_utf_8_is_read(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("x")

    (document,) = named_set("s", tmp_path).read()

    assert document.path == "caf\ufffd.txt"


def test_text_is_lost_that_a_tokenizer_does_not_know() -> None:
    known = {token: number for number, token in enumerate(["<end>", "<unknown>", "e", " "])}
    engine = Tokenizer(models.WordLevel(known, unk_token="<unknown>"))
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<end>")
    texts = ["e e", "ee", "e x", " "]

    assert lost_share(texts, encoded(texts, tokenizer, 0), tokenizer) == 0.25


@given(length=st.integers(0, 300), context_length=st.integers(2, 40), data=st.data())
def test_each_token_is_scored_once_with_the_context_that_the_stride_promises(
    length: int, context_length: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, context_length))
    windows = list(document_windows(7, length, context_length, stride))

    scored = [position for window in windows for position in range(window.scored_from, window.stop)]
    assert scored == list(range(length))
    for window in windows:
        assert 0 < window.length <= context_length
        assert window.start == 0 or window.context >= context_length - stride


@given(lengths=st.lists(st.integers(1, 50)), tokens=st.integers(1, 200), most=st.integers(1, 7))
def test_batches_hold_every_window_once_the_longest_first(lengths: list[int], tokens: int, most: int) -> None:
    windows = [Window(number, 0, 0, length) for number, length in enumerate(lengths)]
    grouped = batches(windows, tokens, most)

    assert all(1 <= len(batch) <= most for batch in grouped)
    assert all(len(batch) == 1 or len(batch) * batch[0].length <= tokens for batch in grouped)
    flat = [window for batch in grouped for window in batch]
    assert sorted(window.document for window in flat) == list(range(len(lengths)))
    assert [window.length for window in flat] == sorted(lengths, reverse=True)


@given(context_length=st.integers(2, 5000))
def test_positions_are_grouped_in_at_most_64_buckets_of_equal_width(context_length: int) -> None:
    first = WindowSizes(context_length, 1).buckets.tolist()

    widths = {stop - start for start, stop in pairwise([*first, context_length])}
    assert first[0] == 0
    assert len(first) <= 64
    assert max(widths) - min(widths) <= 1
    assert min(widths) >= 1
