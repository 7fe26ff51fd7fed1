"""What a source leaves out by its name, wherever it is: hidden files, and rows or archives among text files."""

import json
import os
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from stages.collect.__main__ import main
from stages.formats.documents import Document, read_documents
from stages.formats.reports import read_json
from stages.runtime.entry import InputsChangedError
from stages.runtime.inputs import Inputs
from tests.small_project import FILES_SOURCE, write_corpus, write_project

ORIGIN = {name: value for name, value in FILES_SOURCE.items() if name not in ("kind", "globs")}
HIDDEN = "hidden (its name begins with a dot)"
TREE = ("a/one.py", "a/.env", "a/.git/config", "a/b/two.py", "a/b/.three.py", ".c/four.py")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def collect(*globs: str, **changes: Any) -> list[Document]:
    write_project(Path(), collect__sources=[FILES_SOURCE | {"globs": list(globs)} | changes])
    main()
    return list(read_documents(Path("data/documents")))


def left_out() -> dict[str, int]:
    counts: dict[str, int] = read_json(Path("reports/collect.json"))["left_out"]
    return counts


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket with the tree, on an S3 of this machine; credentials are in AWS's own variables."""
    store, name = ThreadedMotoServer(ip_address="127.0.0.1", port=0), uuid.uuid4().hex
    store.start()
    host, port = store.get_host_and_port()
    for variable, value in (
        ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
        ("AWS_ACCESS_KEY_ID", "me"),
        ("AWS_SECRET_ACCESS_KEY", "mine"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(variable, value)
    S3FileSystem.clear_instance_cache()
    client = boto3.client("s3")
    client.create_bucket(Bucket=name)
    for path in TREE:
        client.put_object(Bucket=name, Key=path, Body=f"# {path}\n".encode())
    yield f"s3://{name}"
    S3FileSystem.clear_instance_cache()
    store.stop()


def write_tree() -> None:
    for path in TREE:
        Path("tree", path).parent.mkdir(parents=True, exist_ok=True)
        Path("tree", path).write_text(f"# {path}\n")


PATTERNS = ["", "/**", "/**/*.py", "/a", "/a/*.py", "/a/.env", "/.c/*.py", "/*/.env"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_s3_and_file_urls_and_local_paths_leave_out_the_same_hidden_files(pattern: str, bucket: str) -> None:
    write_tree()

    def taken(base: str) -> list[str]:
        return sorted(item.text for item in collect(base + pattern))

    local = taken("tree")
    assert taken(bucket) == taken(Path("tree").absolute().as_uri()) == local
    assert [text for text in local if "/." in text or " ." in text] == (
        ["# a/.env\n"] if pattern.endswith(".env") else ["# .c/four.py\n"] if "/.c" in pattern else []
    )


def test_hidden_files_of_a_url_are_counted_and_named(bucket: str) -> None:
    assert sorted(item.path for item in collect(bucket)) == [f"{bucket}/a/b/two.py", f"{bucket}/a/one.py"]

    assert left_out() == {HIDDEN: 4}
    assert f"mine,{bucket}/a/.git/config,{HIDDEN}" in Path("data/left_out.csv").read_text()


def test_credentials_of_s3_come_from_the_configuration_of_fsspec(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"key": "me", "secret": "mine", "endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    (tmp_path / "sources.json").write_text(json.dumps({"s3": values}))
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    fsspec.config.set_conf_files(str(tmp_path), configured := {})
    monkeypatch.setattr(fsspec.config, "conf", configured)

    assert [item.path for item in collect(f"{bucket}/a/one.py")] == [f"{bucket}/a/one.py"]


def test_an_object_of_s3_that_dvc_asks_about_must_not_change_meanwhile(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket}/a/one.py"
    stage = Inputs("collect", "stages.collect", (url,), {}, None, {}, {})
    monkeypatch.setattr("stages.collect.__main__.inputs_of_this_stage", lambda: stage)
    assert len(collect(url)) == 1

    def changed_when_read(*_: Any) -> str:
        client = boto3.client("s3")
        client.put_object(Bucket=bucket.removeprefix("s3://"), Key="a/one.py", Body=b"# a/new.py\n")
        return ""

    monkeypatch.setattr("stages.collect.__main__.corpus_id", changed_when_read)
    with pytest.raises(InputsChangedError, match=r"a/one\.py changed while it was"):
        collect(url)


def test_hidden_members_of_an_archive_are_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile("tree.zip", "w") as archive:
        for path in TREE:
            archive.writestr(f"./{path}" if path == "a/one.py" else path, f"# {path}\n")

    found = collect("tree.zip", kind="archives", suffixes=[], max_unpacked_bytes=10**6)

    assert sorted(item.text for item in found) == ["# a/b/two.py\n", "# a/one.py\n"]
    assert left_out() == {HIDDEN: 4}


def write_data_files() -> None:
    write_corpus(Path(), 2)
    for name in ("x.jsonl", "X.NDJSON", "x.jsonl.gz", "x.csv", "x.txt.7z", "notes.json", "x.jsonl.md"):
        Path("corpus", name).write_text('{"text": "a"}\n')
    pq.write_table(pa.table({"text": ["a"]}), "corpus/x.parquet")
    for name in ("x.zip", "x.tar.gz"):
        Path("corpus", name).write_bytes(b"PK")


def test_rows_and_archives_among_text_files_are_left_out_and_the_run_says_how_to_take_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_data_files()

    found = collect("corpus")

    assert sorted(item.path for item in found) == [
        "corpus/module_000.py",
        "corpus/module_001.py",
        "corpus/notes.json",
        "corpus/x.jsonl.md",
    ]
    expected = {
        "looks like JSON lines (use kind: jsonl)": 3,
        "looks like CSV (use kind: csv)": 1,
        "looks like Parquet (use kind: parquet)": 1,
        "looks like an archive (use kind: archives)": 2,
        "looks compressed (decompress it)": 1,
    }
    assert left_out() == expected
    assert "mine,corpus/x.jsonl,looks like JSON lines (use kind: jsonl)" in Path("data/left_out.csv").read_text()
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == [f"left out {count}: {reason}" for reason, count in expected.items()]


@pytest.mark.parametrize(
    ("globs", "rows"),
    [
        (["corpus/x.jsonl"], ["corpus/x.jsonl"]),
        (["corpus", "corpus/**/*.csv"], ["corpus/x.csv"]),
        (["corpus/x.jsonl", "corpus/*"], ["corpus/x.jsonl"]),
    ],
)
def test_a_glob_that_names_the_ending_takes_rows_as_they_are(globs: list[str], rows: list[str]) -> None:
    write_data_files()

    found = collect(*globs)

    assert [item.path for item in found if item.path.startswith("corpus/x.") and item.path[-3:] != ".md"] == rows
