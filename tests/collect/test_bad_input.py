"""Every kind of source with every kind of bad input: it is left out and named, or ends the run with one line."""

import base64
import http.server
import io
import json
import os
import random
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.collect.__main__ import main
from stages.collect.gather import is_allowed
from stages.formats.documents import Document, read_documents
from stages.formats.reports import read_json
from stages.runtime.entry import UnavailableError, UserError
from tests.small_project import FILES_SOURCE, folder_bytes, write_corpus, write_project

ROWS = {"text": "content", "fields": {"source": None, "path": None, "license": None}}
KINDS = {
    ".py": {"kind": "files"},
    ".jsonl": ROWS | {"kind": "jsonl"},
    ".csv": ROWS | {"kind": "csv"},
    ".parquet": ROWS | {"kind": "parquet"},
    ".zip": {"kind": "archives", "suffixes": [], "max_unpacked_bytes": 10**7},
    ".tar": {"kind": "archives", "suffixes": [], "max_unpacked_bytes": 10**7},
    ".tar.gz": {"kind": "archives", "suffixes": [], "max_unpacked_bytes": 10**7},
}
NOT_FILES = [suffix for suffix in KINDS if suffix != ".py"]
ORIGIN = {name: value for name, value in FILES_SOURCE.items() if name not in ("kind", "globs")}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def source(glob: str, **changes: Any) -> dict[str, Any]:
    """The source of the kind that goes with the name's ending."""
    kind = next(values for suffix, values in KINDS.items() if glob.endswith(suffix))
    return ORIGIN | {"globs": [glob]} | kind | changes


def collect(*sources: dict[str, Any], **changes: Any) -> list[Document]:
    write_project(Path(), collect__sources=list(sources), **changes)
    main()
    return list(read_documents(Path("data/documents")))


def left_out() -> dict[str, int]:
    counts: dict[str, int] = read_json(Path("reports/collect.json"))["left_out"]
    return counts


def write_texts(place: Path, texts: list[str]) -> None:
    """The texts in the format of the name's ending; `#` in the name of a single file becomes their number."""
    suffix = next(suffix for suffix in KINDS if place.name.endswith(suffix))
    if suffix == ".py":
        for number, text in enumerate(texts):
            Path(str(place).replace("#", str(number))).write_bytes(text.encode())
    elif suffix == ".jsonl":
        place.write_text("".join(json.dumps({"content": text}) + "\n" for text in texts))
    elif suffix == ".csv":
        quoted = ['"' + text.replace('"', '""') + '"\n' for text in texts]
        place.write_bytes("".join(["content\n", *quoted]).encode())
    elif suffix == ".parquet":
        pq.write_table(pa.table({"content": texts}), place)
    elif suffix == ".zip":
        with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
            for number, text in enumerate(texts):
                archive.writestr(f"{number}.py", text.encode())
    else:
        with tarfile.open(place, "w:gz" if suffix == ".tar.gz" else "w") as tar:
            for number, text in enumerate(texts):
                member = tarfile.TarInfo(f"{number}.py")
                member.size = len(text.encode())
                tar.addfile(member, io.BytesIO(text.encode()))


@pytest.mark.parametrize("suffix", KINDS)
def test_line_ends_stay_as_they_are_and_nul_bytes_and_empty_texts_are_left_out(suffix: str) -> None:
    texts = ["a = 1\r\nb = 2\r\n", "c = 1\rd = 2\n\r\n", "e = '\u2028\x85\x0b'\n", "nul = '\0'\n", "", " \r\n\t"]
    write_texts(Path(f"rows#{suffix}"), texts)

    found = collect(source(f"rows*{suffix}"))

    assert sorted(item.text for item in found) == sorted(texts[:3])
    assert left_out() == {"binary (NUL bytes)": 1, "empty": 2}


@pytest.mark.parametrize("suffix", NOT_FILES)
def test_an_empty_file_gives_nothing_or_is_refused_by_its_name(suffix: str) -> None:
    write_corpus(Path(), 1)
    Path(f"rows{suffix}").touch()
    sources = (FILES_SOURCE, source(f"rows{suffix}"))

    if suffix in (".jsonl", ".csv"):
        assert len(collect(*sources)) == 1
    else:
        with pytest.raises(UserError, match=rf"^rows{suffix}: no readable (Parquet file|archive)"):
            collect(*sources)


@pytest.mark.parametrize("suffix", NOT_FILES)
@pytest.mark.parametrize("bad", ["pipe", "link to nowhere", "link to itself"])
def test_what_is_no_regular_file_is_refused_and_never_waited_for(bad: str, suffix: str) -> None:
    name = f"rows{suffix}"
    if bad == "pipe":
        os.mkfifo(name)
    else:
        Path(name).symlink_to("nowhere" if bad == "link to nowhere" else name)

    with pytest.raises(UserError, match=rf"^rows{suffix}: no regular file; correct or remove it"):
        collect(source(f"row?{suffix}"))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a file that opens and cannot be read is Linux's")
@pytest.mark.parametrize("suffix", NOT_FILES)
def test_a_file_that_opens_and_cannot_be_read_is_refused_by_its_name(suffix: str) -> None:
    Path(f"rows{suffix}").symlink_to("/proc/self/mem")

    with pytest.raises(UserError, match=rf"^rows{suffix}: (cannot be read|no readable)"):
        collect(source(f"rows{suffix}"))


def test_a_name_that_is_not_utf_8_is_written_out(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "corpus")
    Path("corpus").mkdir()
    for name, content in ((b"caf\xe9.py", "x = 1\n"), (b"vide\xe9.py", "")):
        Path(os.fsdecode(os.path.join(folder, name))).write_text(content)  # noqa: PTH118 - bytes
    with tarfile.open("old.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        member = tarfile.TarInfo("\xe9t\xe9.py")
        member.size = 5
        archive.addfile(member, io.BytesIO(b"y = 2"))
    Path("rows.jsonl").write_text('{"content": "z = 3", "path": "\\ud800.py"}\n')

    rows = source("rows.jsonl", fields={"source": None, "path": "path", "license": None})
    found = {item.path: item.text for item in collect(FILES_SOURCE, source("old.tar"), rows)}

    assert found == {
        "corpus/caf\\udce9.py": "x = 1\n",
        "old.tar!\\udce9t\\udce9.py": "y = 2",
        "\\ud800.py": "z = 3",
    }
    assert "mine,corpus/vide\\udce9.py,empty\n" in Path("data/left_out.csv").read_text()


@settings(max_examples=300, deadline=None)
@given(words=st.lists(st.sampled_from(["MIT", "AND", "OR", "WITH", "(", ")", " ", ":", "+", "é", "\0"])))
def test_whatever_a_row_calls_its_licence_is_judged(words: list[str]) -> None:
    assert is_allowed("".join(words), frozenset(["MIT"])) in (True, False)


def write_a_huge_line(place: Path, before: bytes, after: bytes, size: int) -> None:
    """One line of that size between two others; it takes no space on the disk."""
    with place.open("wb") as file:
        file.write(before)
        file.seek(size, os.SEEK_CUR)
        file.write(after)


def refusal_and_peak(*sources: dict[str, Any]) -> tuple[str, int]:
    """What refused the sources, if anything did, and the bytes of Python's memory at the highest."""
    said = ""
    tracemalloc.start()
    try:
        collect(*sources, collect__max_document_bytes=20_000)
    except UserError as error:
        said = str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return said, peak


def test_a_line_of_a_gigabyte_is_left_out_and_never_held_in_memory() -> None:
    write_a_huge_line(Path("rows.jsonl"), b'{"content": "x = 1"}\n', b'\n{"content": "y = 2"}\n', 2**30)

    said, peak = refusal_and_peak(source("rows.jsonl"))

    assert said == ""
    assert peak < 20e6
    assert sorted(item.text for item in read_documents(Path("data/documents"))) == ["x = 1", "y = 2"]
    assert left_out() == {"larger than max_document_bytes": 1}
    assert "mine,rows.jsonl#2,larger than max_document_bytes" in Path("data/left_out.csv").read_text()


def test_a_csv_line_of_a_gigabyte_ends_the_run_with_its_number_and_is_never_held_in_memory() -> None:
    write_a_huge_line(Path("rows.csv"), b"content\nx = 1\n", b"\ny = 2\n", 2**30)

    said, peak = refusal_and_peak(source("rows.csv"))

    assert said.startswith("rows.csv: line 3 is not valid CSV (longer than 185,536 bytes; raise collect.max_doc")
    assert peak < 20e6


def test_a_csv_text_above_the_limit_is_left_out_and_the_next_is_read() -> None:
    Path("rows.csv").write_text('content\n"' + "x\n" * 15_000 + '"\ny = 2\n')

    assert [item.text for item in collect(source("rows.csv"), collect__max_document_bytes=20_000)] == ["y = 2"]
    assert left_out() == {"larger than max_document_bytes": 1}


def test_a_huge_member_of_an_archive_is_left_out_and_never_held_in_memory() -> None:
    header = tarfile.TarInfo("huge.py")
    header.size = 2**28
    good = tarfile.TarInfo("good.py")
    good.size = 512
    after = good.tobuf() + b"x = 1\n".ljust(512) + bytes(1024)
    write_a_huge_line(Path("a.tar"), header.tobuf(), after, 2**28)

    said, peak = refusal_and_peak(source("a.tar", max_unpacked_bytes=2**31))

    assert said == ""
    assert peak < 20e6
    assert [item.path for item in read_documents(Path("data/documents"))] == ["a.tar!good.py"]
    assert left_out() == {"larger than max_document_bytes": 1}


def test_a_bomb_in_a_name_of_a_tar_is_refused_and_never_held_in_memory() -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2**27
    with tarfile.open("bomb.tar.gz", "w:gz") as archive:
        archive.fileobj.write(header.tobuf())  # type: ignore[union-attr]
        for _ in range(2**7):
            archive.fileobj.write(b"x" * 2**20)  # type: ignore[union-attr]

    said, peak = refusal_and_peak(source("bomb.tar.gz", max_unpacked_bytes=2**40))

    assert said.startswith("bomb.tar.gz: no readable archive (a header of 134,217,728 bytes)")
    assert peak < 20e6


def test_a_zip_that_states_a_smaller_size_than_it_unpacks_to_is_refused() -> None:
    write_texts(Path("bomb.zip"), ["x" * 10**6])
    data = Path("bomb.zip").read_bytes()
    Path("bomb.zip").write_bytes(data.replace((10**6).to_bytes(4, "little"), (10).to_bytes(4, "little")))

    with pytest.raises(UserError, match=r"^bomb\.zip: no readable archive \(Bad CRC-32"):
        collect(source("bomb.zip"))


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Some bytes changed, put in, or the rest cut off."""
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 5])):
        place = draw.randrange(len(changed))
        how = draw.random()
        if how < 0.7:
            changed[place] = draw.randrange(256)
        elif how < 0.85:
            changed[place:place] = draw.randbytes(3)
        else:
            del changed[max(place, 1) :]
    return bytes(changed)


@pytest.mark.parametrize("suffix", NOT_FILES)
def test_a_damaged_file_is_read_or_refused_by_its_name_and_never_ends_in_a_traceback(suffix: str) -> None:
    name = f"rows{suffix}"
    write_corpus(Path(), 1)
    write_texts(Path(name), [f"name = 'é{number}'\n" * 20 for number in range(20)])
    whole = Path(name).read_bytes()
    draw = random.Random(0)
    refusals = []

    for _ in range(80):
        Path(name).write_bytes(damaged(whole, draw))
        try:
            collect(FILES_SOURCE, source(name))
        except UserError as error:
            refusals.append(str(error))

    assert len(refusals) > 5
    assert [said for said in refusals if not said.startswith(name) or len(said.splitlines()) > 1] == []


def test_a_refused_source_leaves_the_previous_documents_and_reports_as_they_were() -> None:
    write_corpus(Path(), 3)
    collect(FILES_SOURCE)
    before = folder_bytes(Path("data")) | folder_bytes(Path("reports"))
    Path("rows.jsonl").write_text('{"content": "x = 1"}\n' * 500 + '{"content": "y = ')

    with pytest.raises(UserError, match=r"^rows\.jsonl: line 501 is not valid JSON"):
        collect(FILES_SOURCE, source("rows.jsonl"))

    assert folder_bytes(Path("data")) | folder_bytes(Path("reports")) == before
    assert sorted(Path("data").iterdir()) == [Path("data/documents"), Path("data/left_out.csv")]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class BreaksOff(Quiet):
    """States a length and gives less, once it was asked what it offers."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        self.wfile.write(b'{"content": "x = 1"}\n')


def serve(handler: type[Quiet]) -> Iterator[str]:
    served = partial(handler, directory=str(Path("served").absolute()))
    Path("served").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def server(project: None) -> Iterator[str]:
    """The address of a server of `served/`."""
    yield from serve(Quiet)


@pytest.fixture
def server_that_breaks_off(project: None) -> Iterator[str]:
    yield from serve(BreaksOff)


@pytest.mark.parametrize("suffix", [suffix for suffix in KINDS if suffix != ".zip"])  # it is read from its end
def test_every_kind_of_source_is_read_from_a_server(server: str, suffix: str) -> None:
    texts = [f"x = {number}\r\n" for number in range(50)]
    write_texts(Path(f"served/rows#{suffix}"), texts)
    name = f"rows*{suffix}" if suffix == ".py" else f"rows%23{suffix}"

    assert sorted(item.text for item in collect(source(f"{server}/{name}"))) == sorted(texts)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet", ".zip", ".tar"])
def test_the_query_of_an_address_hides_no_ending(server: str, suffix: str) -> None:
    write_texts(Path(f"served/rows{suffix}"), ["x = 1\n", "y = 2\n"])
    address = {"globs": [f"{server}/rows{suffix}?download=true"]}
    folder = {"kind": "folder", "text": ["content"], "part_bytes": None, "max_unpacked_bytes": 10**6}

    assert sorted(item.text for item in collect(source(suffix) | address)) == ["x = 1\n", "y = 2\n"]
    assert sorted(item.text for item in collect(FILES_SOURCE | address | folder)) == ["x = 1\n", "y = 2\n"]


@pytest.mark.parametrize("suffix", [".py", ".jsonl", ".csv", ".parquet", ".zip", ".tar"])
def test_a_server_that_breaks_off_ends_the_run_with_the_address(server_that_breaks_off: str, suffix: str) -> None:
    write_texts(Path(f"served/rows{suffix}"), ["x = 1\n" * 2000] * 5)
    address = f"{server_that_breaks_off}/rows{suffix}"

    with pytest.raises(UnavailableError) as refused:
        collect(source(address))

    assert str(refused.value).startswith(f"{address}: cannot be read (")
    assert str(refused.value).endswith("check the address and the network and try again")


class AsksForALogin(Quiet):
    """Serves nothing without this user and password, and answers by whole pages of unknown length."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Basic " + base64.b64encode(b"bob:s3cr3t").decode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        if self.command == "GET" and known:
            self.wfile.write(b"<a href='other.html'>x</a>\n")


@pytest.fixture
def server_with_a_login(project: None) -> Iterator[str]:
    yield from serve(AsksForALogin)


def test_a_web_page_with_links_is_a_document_and_no_folder(server: str) -> None:
    Path("served/page").mkdir()
    Path("served/page/index.html").write_text("<a href='../other.html'>x</a> <a href='inner.html'>y</a>\n")
    Path("served/page/inner.html").write_text("<p>inner</p>\n")
    Path("served/page.html").write_text("<a href='page/inner.html'>x</a>\n")

    found = collect(FILES_SOURCE | {"globs": [f"{server}/page.html", f"{server}/page/?download=1"]})

    assert {item.path.removeprefix(server): item.text for item in found} == {
        "/page.html": "<a href='page/inner.html'>x</a>\n",
        "/page/?download=1": "<a href='../other.html'>x</a> <a href='inner.html'>y</a>\n",
    }
    assert [item.text for item in collect(FILES_SOURCE | {"globs": [f"{server}/page/in*.html"]})] == ["<p>inner</p>\n"]


def test_credentials_of_a_web_server_come_from_netrc(server_with_a_login: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = FILES_SOURCE | {"globs": [f"{server_with_a_login}/page.html"]}
    Path("netrc").write_text("machine 127.0.0.1 login bob password s3cr3t\n")
    Path("netrc").chmod(0o600)
    with pytest.raises(UserError, match=r"access denied \(.*401"):
        collect(asked)

    monkeypatch.setenv("NETRC", str(Path("netrc").absolute()))

    assert [item.text for item in collect(asked)] == ["<a href='other.html'>x</a>\n"]


def test_credentials_of_a_web_server_come_from_the_configuration_of_fsspec(
    server_with_a_login: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = "Basic " + base64.b64encode(b"bob:s3cr3t").decode()
    (tmp_path / "sources.json").write_text(
        json.dumps({"https": {"client_kwargs": {"headers": {"Authorization": header}}}})
    )
    fsspec.config.set_conf_files(str(tmp_path), configured := {})
    monkeypatch.setattr(fsspec.config, "conf", configured)

    found = collect(FILES_SOURCE | {"globs": [f"{server_with_a_login}/page.html"]})

    assert [item.text for item in found] == ["<a href='other.html'>x</a>\n"]


@pytest.mark.parametrize("kind", ["files", "jsonl", "csv", "parquet", "archives"])
def test_a_url_with_a_password_is_refused_before_anything_is_fetched(kind: str) -> None:
    suffix = next(suffix for suffix, values in KINDS.items() if values["kind"] == kind)
    with pytest.raises(UserError, match=r"collect\.sources\.0\.globs\.0: the URL holds a password") as refused:
        collect(source(f"http://bob:s3cr3t@127.0.0.1:9/rows{suffix}"))
    assert "s3cr3t" not in str(refused.value)


def test_a_password_in_the_path_that_a_row_names_is_taken_out() -> None:
    Path("rows.jsonl").write_text('{"content": "x = 1", "path": "https://bob:s3cr3t@host/a.py?sig=s3cr3t"}\n')

    [found] = collect(source("rows.jsonl", fields={"source": None, "path": "path", "license": None}))

    assert found.path == "https://host/a.py"


def test_a_key_that_is_there_twice_in_a_line_ends_the_run() -> None:
    Path("rows.jsonl").write_text('{"content": "x = 1"}\n{"content": "a", "content": "second = 2"}\n')

    with pytest.raises(UserError, match=r"^rows\.jsonl: line 2 is not valid JSON \(the key `content` is there twice\)"):
        collect(source("rows.jsonl"))


@pytest.mark.parametrize("kind", ["parquet", "hub"])
def test_a_flipped_bit_in_a_parquet_file_with_checksums_never_changes_a_document(kind: str) -> None:
    Path("rows").mkdir()
    texts = [f"name_{number} = 'value {number * 7919}'\n" for number in range(300)]
    pq.write_table(pa.table({"content": texts}), "rows/a.parquet", compression="none", write_page_checksum=True)
    data, draw, refused = Path("rows/a.parquet").read_bytes(), random.Random(8), 0
    hub = ORIGIN | ROWS | {"kind": "hub", "repository": "rows", "configuration": None, "split": "train", "revision": ""}
    asked = hub if kind == "hub" else source("rows/a.parquet")
    assert sorted(item.text for item in collect(asked)) == sorted(texts)

    for _ in range(30):
        flipped = bytearray(data)
        flipped[draw.randrange(4, len(data) // 2)] ^= 1 << draw.randrange(8)
        Path("rows/a.parquet").write_bytes(bytes(flipped))
        try:
            assert sorted(item.text for item in collect(asked)) == sorted(texts)
        except UserError:
            refused += 1

    assert refused > 25


ARCHIVES = [".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip"]


def write_archive(suffix: str) -> tuple[bytes, list[str]]:
    texts = [f"name_{number} = 'value {number}'\n" * 9 for number in range(40)]
    if suffix == ".zip":
        write_texts(Path("a.zip"), texts)
    else:
        with tarfile.open(f"a{suffix}", "w:" + suffix[5:]) as archive:  # type: ignore[call-overload]
            for number, text in enumerate(texts):
                member = tarfile.TarInfo(f"{number}.py")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return Path(f"a{suffix}").read_bytes(), sorted(texts)


def collected_or_refused(suffix: str, data: bytes) -> list[str] | None:
    """The texts, or None where the archive was refused."""
    Path(f"a{suffix}").write_bytes(data)
    kind = {"kind": "archives", "suffixes": [], "max_unpacked_bytes": 10**7}
    try:
        return sorted(item.text for item in collect(ORIGIN | kind | {"globs": [f"a{suffix}"]}))
    except UserError as error:
        if not str(error).startswith(f"a{suffix}: no readable archive ("):
            raise
        return None


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_an_archive_that_is_cut_off_anywhere_is_refused_or_whole(suffix: str) -> None:
    data, texts = write_archive(suffix)
    draw = random.Random(5)
    cuts = [draw.randrange(1, len(data)) for _ in range(40)]
    if suffix == ".tar":
        cuts += [512 * draw.randrange(1, 120) for _ in range(20)]  # between a header and its text

    results = [collected_or_refused(suffix, data[:cut]) for cut in cuts]

    assert all(found in (None, texts) for found in results)
    assert results.count(None) > 20


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.bz2", ".tar.xz", ".zip"])
def test_a_flipped_bit_in_a_compressed_archive_never_changes_a_document(suffix: str) -> None:
    data, texts = write_archive(suffix)
    draw = random.Random(6)

    for _ in range(40):
        flipped = bytearray(data)
        flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        assert collected_or_refused(suffix, bytes(flipped)) in (None, texts)


def test_a_flipped_bit_in_a_header_of_a_tar_is_refused() -> None:
    data, texts = write_archive(".tar")
    draw = random.Random(7)

    for _ in range(40):
        flipped = bytearray(data)
        header = 1024 * draw.randrange(0, len(texts))  # each member takes a block of header and a block of text
        flipped[header + draw.randrange(100)] ^= 1 << draw.randrange(8)
        assert collected_or_refused(".tar", bytes(flipped)) is None


def test_two_tars_in_one_file_are_refused_as_half_of_it_would_be_missing() -> None:
    data, _ = write_archive(".tar")

    assert collected_or_refused(".tar", data + data) is None
