"""The sources other than plain files: archives, CSV, URLs, data sets; and input that is broken on purpose."""

import bz2
import gzip
import http.server
import io
import json
import lzma
import os
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.collect import reading
from stages.collect.__main__ import main
from stages.collect.content_check import ContentCheck, SeenFiles, UnreadDocument
from stages.collect.source_kinds import Reading
from stages.collect.sources.files import Files
from stages.collect.sources.text_rows import Jsonl
from stages.collect.trie import write_documents
from stages.formats.documents import Document, read_documents
from stages.formats.reports import read_json
from stages.runtime.entry import UnavailableError, UserError
from tests.hub_client import with_short_waits
from tests.small_project import FILES_SOURCE, ROOT, write_corpus, write_project

NO_FIELDS = {"source": None, "path": None, "license": None}
ORIGIN = {name: value for name, value in FILES_SOURCE.items() if name not in ("kind", "globs")}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def collect(*sources: dict[str, Any], **changes: Any) -> list[Document]:
    write_project(Path(), collect__sources=list(sources), **changes)
    main()
    return list(read_documents(Path("data/documents")))


def left_out() -> dict[str, int]:
    counts: dict[str, int] = read_json(Path("reports/collect.json"))["left_out"]
    return counts


def archives(*globs: str, suffixes: tuple[str, ...] = (".py",), limit: int = 10**7) -> dict[str, Any]:
    kind = {"kind": "archives", "globs": list(globs), "suffixes": list(suffixes), "max_unpacked_bytes": limit}
    return ORIGIN | kind


def write_zip(path: str, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def open_zstd(path: str, _: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(pa.output_stream(path, compression="zstd"))


def write_tar(path: str, members: dict[str, bytes], mode: Any = "w:gz") -> None:
    zstd = pa.output_stream(path, compression="zstd") if mode == "w:zst" else None
    with zstd or nullcontext(), tarfile.open(path, "w|" if zstd else mode, fileobj=zstd) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


MEMBERS = {"a/one.py": b"x = 1\n", "two.py": b"y = 2\n", "readme.md": b"# no\n", "empty.py": b""}


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.tar.zst"])
def test_an_archives_members_are_documents(name: str) -> None:
    if name.endswith("zip"):
        write_zip(name, MEMBERS)
    else:
        write_tar(name, MEMBERS, "w:" + name.partition(".tar")[2].lstrip("."))

    found = {item.path: item.text for item in collect(archives("a.*"))}

    assert found == {f"{name}!a/one.py": "x = 1\n", f"{name}!two.py": "y = 2\n"}
    assert left_out() == {"empty": 1}


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_a_member_outside_the_archive_is_left_out_and_nothing_is_written(write: Any, tmp_path: Path) -> None:
    write("a.zip" if write is write_zip else "a.tar", {"../evil.py": b"x", "/etc/evil.py": b"x", "good.py": b"x = 1"})

    assert [item.text for item in collect(archives("a.*"))] == ["x = 1"]
    assert left_out()["path outside the archive"] >= 1
    assert not list(tmp_path.parent.glob("evil.py"))


def test_a_source_that_states_too_large_a_share_or_none_is_refused() -> None:
    for share in (0.0, 1.5):
        with pytest.raises(UserError, match=rf"collect\.sources.*share = {share}: Input should be"):
            collect(FILES_SOURCE | {"share": share})


@pytest.mark.parametrize("name", ["shard_bytes", "max_document_bytes"])
def test_more_text_in_a_shard_than_arrow_can_point_to_is_refused_before_anything_is_read(name: str) -> None:
    """Else `clean` ends in a traceback when it writes the splits."""
    with pytest.raises(UserError, match=rf"collect\.{name} = 3000000000: Input should be less than or equal to 1000"):
        collect(FILES_SOURCE, **{f"collect__{name}": 3 * 10**9})


def test_links_in_an_archive_are_not_followed() -> None:
    with tarfile.open("a.tar", "w") as archive:
        link = tarfile.TarInfo("passwd.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        info = tarfile.TarInfo("good.py")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"x = 1"))

    assert [item.text for item in collect(archives("a.tar"))] == ["x = 1"]
    assert left_out() == {"no regular file": 1}


@pytest.mark.parametrize("name", ["bomb.zip", "bomb.tar.gz"])
def test_a_decompression_bomb_is_refused_without_being_unpacked(name: str) -> None:
    many = {f"{number}.py": b"x" * 900_000 for number in range(12)}
    if name.endswith("zip"):
        write_zip(name, many)
    else:
        write_tar(name, many)
    assert Path(name).stat().st_size < 100_000

    with pytest.raises(UserError, match=rf"{name}: .*unpacks to more than max_unpacked_bytes = 5,000,000"):
        collect(archives(name, limit=5_000_000))


def test_one_huge_member_is_skipped_by_the_size_it_states() -> None:
    write_zip("a.zip", {"huge.py": b"x" * 3_000_000, "good.py": b"x = 1"})

    assert [item.text for item in collect(archives("a.zip"))] == ["x = 1"]
    assert left_out() == {"larger than max_document_bytes": 1}


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.xz", "a.tar.zst"])
def test_what_is_no_archive_or_half_of_one_is_refused(name: str) -> None:
    Path(name).write_bytes(b"hello")
    with pytest.raises(UserError, match=rf"{name}: no readable archive"):
        collect(archives(name))

    members = {f"{number}.py": os.urandom(5000).hex().encode() for number in range(20)}
    if name.endswith("zip"):
        write_zip(name, members)
    else:
        write_tar(name, members, "w:" + name.partition(".tar.")[2])
    Path(name).write_bytes(Path(name).read_bytes()[:20_000])
    with pytest.raises(UserError, match=rf"{name}: no readable archive"):
        collect(archives(name))


def test_an_encrypted_zip_is_refused() -> None:
    write_zip("a.zip", {"a.py": b"x = 1"})
    data = bytearray(Path("a.zip").read_bytes())
    data[6] |= 1
    data[data.rfind(b"PK\1\2") + 8] |= 1
    Path("a.zip").write_bytes(data)

    with pytest.raises(UserError, match=r"a\.zip: no readable archive .*password required"):
        collect(archives("a.zip"))


def csv(path: str) -> dict[str, Any]:
    return ORIGIN | {"kind": "csv", "globs": [path], "text": "code", "fields": NO_FIELDS | {"license": "licence"}}


def test_rows_of_csv_are_documents() -> None:
    Path("a.csv").write_text('licence,code\nApache-2.0,"x = 1\ny = ""2""\n"\n,z = 3\n', newline="")

    assert sorted((item.license, item.text) for item in collect(csv("a.csv"))) == [
        ("Apache-2.0", 'x = 1\ny = "2"\n'),
        ("MIT", "z = 3"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"licence,text\nMIT,x\n", r"a\.csv#1: no field `code`; it has licence, text"),
        (b'licence,code\nMIT,x\nMIT,"open\n', r"a\.csv: line \d+ is not valid CSV \(unexpected end of data\)"),
        (b"licence,code\nMIT,\xff\n", r"a\.csv: line \d+ is not valid CSV \('utf-8' codec"),
        (b"licence,code\nMIT,x\nMIT,f(a, b)\n", r"^a\.csv: line 3 has 3 cells, and there are 2 columns; quote a cell"),
        (b"licence,code\n\nMIT\nMIT,x\n", r"^a\.csv: line 3 has 1 cells, and there are 2 columns; quote a cell"),
        (b'licence,code\nMIT,"x\ny"\nMIT,"x\ny",\n', r"^a\.csv: line 4 has 3 cells, and there are 2 columns"),
    ],
)
def test_broken_csv_is_refused_with_its_line(content: bytes, message: str) -> None:
    Path("a.csv").write_bytes(content)

    with pytest.raises(UserError, match=message):
        collect(csv("a.csv"))


def test_any_url_that_fsspec_opens_is_a_source() -> None:
    system = fsspec.filesystem("memory")
    for number in range(3):
        system.pipe(f"/bucket/code/{number}.py", f"x = {number}\n".encode())
    system.pipe("/bucket/rows.jsonl", b'{"content": "y = 1"}\n')
    jsonl = ORIGIN | {"kind": "jsonl", "text": "content", "fields": NO_FIELDS}

    found = collect(
        FILES_SOURCE | {"globs": ["memory://bucket/code/*.py", "memory://bucket/code"]},
        jsonl | {"globs": ["memory://bucket/rows.jsonl"]},
    )

    assert sorted(item.path for item in found) == [
        "memory:///bucket/code/0.py",
        "memory:///bucket/code/1.py",
        "memory:///bucket/code/2.py",
        "memory:///bucket/rows.jsonl#1",
    ]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nowhere/*.py", "`memory://nowhere/\\*.py` matches no file; correct the path"),
        ("memory://nowhere/a.py", "`memory://nowhere/a.py` matches no file; correct the path"),
        ("nosuch://bucket/a.py", "`nosuch://bucket/a.py` cannot be listed .*check the address and the network"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        collect(FILES_SOURCE | {"globs": [url]})


def hub(repository: str, split: str = "train") -> dict[str, Any]:
    where = {"kind": "hub", "repository": repository, "configuration": None, "split": split}
    return ORIGIN | where | {"text": "content", "fields": NO_FIELDS | {"source": "repo"}, "revision": ""}


def test_a_data_set_is_streamed_row_by_row() -> None:
    Path("set").mkdir()
    pq.write_table(pa.table({"content": ["x = 1\n", "y = 2\n"], "repo": ["a", "b"]}), "set/train.parquet")

    assert sorted((item.source, item.text) for item in collect(hub("set"))) == [("a", "x = 1\n"), ("b", "y = 2\n")]


def test_a_data_set_without_the_split_is_refused() -> None:
    Path("set").mkdir()
    pq.write_table(pa.table({"content": ["x = 1\n"], "repo": ["a"]}), "set/train.parquet")

    with pytest.raises(UserError, match="data set `set` cannot be read"):
        collect(hub("set", split="nosuch"))


def test_a_data_set_without_a_revision_is_refused_as_it_may_differ_tomorrow() -> None:
    with pytest.raises(UserError, match="data set `someone/something` has no revision; name a commit") as refused:
        collect(hub("someone/something"))
    assert refused.value.exit_code == 2


def test_a_data_set_without_the_column_is_refused_with_those_it_has() -> None:
    Path("set").mkdir()
    pq.write_table(pa.table({"code": ["x = 1\n"], "repo": ["a"]}), "set/train.parquet")

    with pytest.raises(UserError, match=r"^set#1: no field `content`; it has code, repo"):
        collect(hub("set"))


def test_without_a_network_the_error_names_the_way_out() -> None:
    write_project(Path(), collect__sources=[hub("someone/something") | {"revision": "0" * 40}])

    run = subprocess.run(
        [sys.executable, "-m", "stages.collect"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(Path("home").absolute())},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 2
    assert "error: collect.sources: data set `someone/something` cannot be read" in run.stderr
    assert "name its files as a source of kind `parquet`" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_share_takes_about_that_part_of_a_source_and_a_larger_one_more_of_the_same() -> None:
    write_corpus(Path(), 200)
    tenth, half = ({item.id for item in collect(FILES_SOURCE | {"share": share})} for share in (0.1, 0.5))

    assert 8 <= len(tenth) <= 36
    assert 80 <= len(half) <= 120
    assert tenth < half


def test_a_line_too_long_for_memory_is_skipped_and_the_next_is_read() -> None:
    with Path("rows.jsonl").open("w") as file:
        file.write(json.dumps({"content": "x" * 8_000_000}) + "\n")
        file.write(json.dumps({"content": "y = 1"}) + "\n")
    source = ORIGIN | {"kind": "jsonl", "globs": ["rows.jsonl"], "text": "content", "fields": NO_FIELDS}

    assert [item.text for item in collect(source)] == ["y = 1"]
    assert left_out() == {"larger than max_document_bytes": 1}


def test_a_file_that_is_too_large_is_skipped_unread() -> None:
    write_corpus(Path(), 1)
    with Path("corpus/huge.py").open("wb") as file:
        file.truncate(10**12)

    assert len(collect(FILES_SOURCE)) == 1
    assert left_out() == {"larger than max_document_bytes": 1}


def test_a_file_that_vanishes_before_it_is_read_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    write_corpus(Path(), 3)
    monkeypatch.setattr(reading, "FILES_AT_ONCE", 1)
    items = Files.model_validate(FILES_SOURCE).items(Reading(1000, SeenFiles()))
    next(items)
    Path("corpus/module_002.py").unlink()

    assert [item.reason for item in items] == ["", "unreadable: No such file or directory"]


def test_a_file_that_vanishes_before_it_is_written_ends_the_run_with_its_name() -> None:
    write_corpus(Path(), 1)
    [item] = Files.model_validate(FILES_SOURCE).items(Reading(1000, SeenFiles()))
    assert isinstance(item.content, ContentCheck)
    document = UnreadDocument(item.content.id, "mine", "", item.path, "", "", item.content.size)
    Path("corpus/module_000.py").unlink()

    with pytest.raises(UserError, match=r"corpus/module_000\.py changed while it was collected; run again"):
        write_documents(Path(), [document], 1000)


def test_rows_that_vanish_midway_end_the_run_with_the_files_name() -> None:
    for name in ("a.jsonl", "b.jsonl"):
        Path(name).write_text('{"content": "x = 1"}\n')
    source = ORIGIN | {"kind": "jsonl", "globs": ["*.jsonl"], "text": "content", "fields": NO_FIELDS}
    rows = Jsonl.model_validate(source).items(Reading(1000, SeenFiles()))
    next(rows)
    Path("b.jsonl").unlink()

    with pytest.raises(
        UserError, match=r"b\.jsonl: cannot be read \(No such file or directory\); correct or remove it"
    ):
        next(rows)


def test_two_runs_at_once_give_one_whole_result() -> None:
    write_corpus(Path(), 30)
    write_project(Path(), collect__sources=[FILES_SOURCE])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "stages.collect"]
    runs = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [run.communicate()[1] for run in runs]

    assert 0 in [run.returncode for run in runs]
    assert all(
        run.returncode == 0 or "another run is writing here" in error for run, error in zip(runs, errors, strict=True)
    )
    assert len(list(read_documents(Path("data/documents")))) == 30


def test_lone_surrogates_in_json_are_no_text() -> None:
    Path("rows.jsonl").write_text('{"content": "\\ud800"}\n{"content": "y = 1"}\n')
    source = ORIGIN | {"kind": "jsonl", "globs": ["rows.jsonl"], "text": "content", "fields": NO_FIELDS}

    assert [item.text for item in collect(source)] == ["y = 1"]
    assert left_out() == {"not UTF-8": 1}


def test_the_same_text_twice_is_two_documents_with_one_id() -> None:
    write_corpus(Path(), 1)
    Path("corpus/copy.py").write_text(Path("corpus/module_000.py").read_text())

    first, second = collect(FILES_SOURCE)
    assert first.id == second.id
    assert (first.path, second.path) == ("corpus/copy.py", "corpus/module_000.py")


def test_a_truncated_parquet_file_is_refused() -> None:
    pq.write_table(pa.table({"content": [os.urandom(500).hex() for _ in range(500)]}), "rows.parquet")
    data = Path("rows.parquet").read_bytes()
    Path("rows.parquet").write_bytes(data[: len(data) // 2])
    source = ORIGIN | {"kind": "parquet", "globs": ["rows.parquet"], "text": "content", "fields": NO_FIELDS}

    with pytest.raises(UserError, match=r"rows\.parquet: no readable Parquet file"):
        collect(source)


def test_a_gzip_under_the_name_of_a_python_file_is_no_text() -> None:
    write_corpus(Path(), 1)
    Path("corpus/packed.py").write_bytes(gzip.compress(b"x = 1"))

    assert len(collect(FILES_SOURCE)) == 1
    assert left_out() == {"not UTF-8": 1}


@pytest.mark.parametrize("revision", ["main", "v1.0", "0" * 39, "0" * 40 + "x"])
def test_a_revision_that_can_move_is_refused_before_anything_is_read(revision: str) -> None:
    with pytest.raises(UserError, match=f"the revision `{revision}`; name a commit") as refused:
        collect(hub("someone/something") | {"revision": revision})
    assert refused.value.exit_code == 2


class Answers(http.server.BaseHTTPRequestHandler):
    """A Hub that answers everything with one status."""

    status = 503

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [(503, 69, "the Hub does not answer: try again"), (403, 2, "access denied"), (404, 2, "correct its name")],
)
def test_an_outage_of_the_hub_may_be_retried_and_a_refusal_may_not(status: int, code: int, told: str) -> None:
    write_project(Path(), collect__sources=[hub("someone/something") | {"revision": "0" * 40}])
    handler = type("Handler", (Answers,), {"status": status})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(Path("home").absolute())}
        run = subprocess.run(
            with_short_waits("stages.collect"),
            env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "0"} | address,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        server.shutdown()

    assert (run.returncode, len(run.stderr.splitlines()[-1:])) == (code, 1), run.stderr
    assert told in run.stderr.splitlines()[-1]


def test_a_hub_that_cannot_be_reached_is_unavailable() -> None:
    write_project(Path(), collect__sources=[hub("someone/something") | {"revision": "0" * 40}])
    address = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(Path("home").absolute()), "HF_HUB_OFFLINE": "0"}

    run = subprocess.run(
        with_short_waits("stages.collect"),
        env=os.environ | {"PYTHONPATH": str(ROOT)} | address,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert run.returncode == 69, run.stderr


def test_links_in_a_zip_are_not_documents() -> None:
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("good.py", "x = 1")
        link = zipfile.ZipInfo("link.py")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")

    assert [item.path for item in collect(archives("a.zip"))] == ["a.zip!good.py"]
    assert left_out() == {"no regular file": 1}


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize(
    ("suffix", "open_"), [(".gz", gzip.open), (".bz2", bz2.open), (".xz", lzma.open), (".zst", open_zstd)]
)
def test_compressed_rows_are_read_and_a_truncated_file_is_refused(kind: str, suffix: str, open_: Any) -> None:
    lines = [f"x = {number * 7919}" for number in range(3000)]
    rows = ["content", *lines] if kind == "csv" else [json.dumps({"content": line}) for line in lines]
    name = f"rows.{kind}{suffix}"
    with open_(name, "wt") as file:
        file.write("".join(f"{row}\n" for row in rows))
    source = ORIGIN | {"kind": kind, "text": "content", "fields": NO_FIELDS, "globs": [name]}

    assert sorted(item.text for item in collect(source)) == sorted(lines)
    data = Path(name).read_bytes()
    for size in (len(data) // 2, len(data) - 1):
        Path(name).write_bytes(data[:size])
        with pytest.raises(UserError, match=rf"^{name}: "):
            collect(source)


def test_a_compression_that_is_not_read_is_refused_with_what_to_do() -> None:
    Path("rows.jsonl.lz4").write_bytes(b"\x04\x22\x4d\x18")
    source = ORIGIN | {"kind": "jsonl", "text": "content", "fields": NO_FIELDS, "globs": ["rows.jsonl.lz4"]}

    with pytest.raises(UserError, match=r"^rows\.jsonl\.lz4: .* decompress it, or use \.gz, \.bz2, \.xz or \.zst$"):
        collect(source)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_text_file_is_one_document_and_a_damaged_one_is_left_out(suffix: str) -> None:
    Path("corpus").mkdir()
    for name in ("whole", "cut_off", "large"):
        text = "x = 1\n" * (400_000 if name == "large" else 9)
        with (gzip.open if suffix == ".gz" else open_zstd)(f"corpus/{name}.txt{suffix}", "wt") as file:
            file.write(text)
    cut_off = Path(f"corpus/cut_off.txt{suffix}")
    cut_off.write_bytes(cut_off.read_bytes()[:-1])

    for _ in range(2):  # the second time by what is known of the files
        assert [item.text for item in collect(FILES_SOURCE)] == ["x = 1\n" * 9]
        assert left_out() == {
            "larger than max_document_bytes": 1,
            "unreadable: damaged, cut off, or not compressed as its name says": 1,
        }
        os.utime(f"corpus/whole.txt{suffix}", (1e9, 1e9))


def test_a_bad_byte_in_a_csv_is_named_with_its_line() -> None:
    Path("rows.csv").write_bytes(b"code\n" + b"x = 1\n" * 500 + b"caf\xe9\n" + b"y = 2\n" * 500)

    with pytest.raises(UserError, match=r"^rows\.csv: line 502 is not valid CSV"):
        collect(csv("rows.csv") | {"fields": NO_FIELDS})


def test_two_columns_of_one_name_are_refused() -> None:
    Path("rows.csv").write_text("content,content\nx,y\n")
    with pytest.raises(UserError, match=r"^rows\.csv: several columns are named `content`; rename them"):
        collect(csv("rows.csv"))
    pq.write_table(pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["content", "content"]), "a.parquet")
    parquet = ORIGIN | {"kind": "parquet", "text": "content", "fields": NO_FIELDS, "globs": ["a.parquet"]}
    with pytest.raises(UserError, match=r"^a\.parquet: several columns are named `content`; rename them"):
        collect(parquet)


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.collect.remote.SILENT_SECONDS", 0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(UnavailableError, match=r"cannot be listed .*try again"),
    ):
        collect(FILES_SOURCE | {"globs": [f"http://127.0.0.1:{server.getsockname()[1]}/a.py"]})


def test_refused_credentials_are_no_outage() -> None:
    handler = type("Handler", (Answers,), {"status": 403})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UserError, match=r"access denied \(.*403") as refused:
            collect(FILES_SOURCE | {"globs": [f"http://127.0.0.1:{server.server_port}/a.py"]})
        server.shutdown()

    assert refused.value.exit_code == 2
