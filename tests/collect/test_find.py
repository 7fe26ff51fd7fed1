"""Which files a source takes: those that DVC hashes, here and at URLs."""

import base64
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import NoCredentialsError
from s3fs import S3FileSystem

from stages.collect.find import find, remote_error
from stages.formats.documents import Document
from stages.runtime.atomic import LFS_POINTER
from stages.runtime.errors import UnavailableError, UserError
from tests.collect import collecting
from tests.collect.collecting import left_out
from tests.s3 import empty_bucket

HIDDEN = "hidden (its name begins with a dot)"
LINK = "link (copy its target, or name it in globs)"
IGNORED = "ignored by DVC (.dvcignore, or a DVC project of its own)"
TREE = ("a/one.py", "a/.env", "a/.git/config", "a/b/two.py", "a/b/.three.py", ".c/four.py")


def collect(*globs: str) -> list[Document]:
    return collecting.collect(collecting.files(*globs))


def write(*paths: str) -> None:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(f"# {path}\n")


def test_what_dvc_does_not_hash_is_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A project below corpus/ with a .dvc of its own, and what .dvcignore names."""
    write("corpus/own.py", "corpus/project/a.py", "corpus/deep/project/b/c.py", "corpus/drafts/d.py", "corpus/e.tmp")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], check=True)
    Path("corpus/project/.dvc").mkdir()
    Path("corpus/deep/project/.dvc").mkdir()
    Path(".dvcignore").write_text("/corpus/drafts\n*.tmp\n")
    Path("corpus/own.py.dvc").write_text("outs: []\n")

    assert [item.path for item in collect("corpus")] == ["corpus/own.py"]
    assert left_out() == {IGNORED: 4, HIDDEN: 2, "DVC's own file": 1}
    assert f"left out 4: {IGNORED}" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"`corpus/project` has no file to read; .*: ignored by DVC"):
        collect("corpus/project")


def test_an_empty_corpus_says_to_put_documents_into_it() -> None:
    write("corpus/.gitignore")

    with pytest.raises(UserError, match=r"^collect\.sources: `corpus` is empty: put your documents into it"):
        collect("corpus")
    with pytest.raises(UserError, match=r"^collect\.sources: `corpsu/\*\.py` matches no file; correct the path"):
        collect("corpsu/*.py")


def test_pointers_of_git_lfs_and_dvc_are_left_out_with_a_warning_that_names_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("corpus/own.py", "corpus/books.dvc")
    for name in ("a.txt", "b.jsonl", "c.parquet", "d.txt.gz"):
        Path("corpus", name).write_bytes(LFS_POINTER + b"oid sha256:4d7a\nsize 12345\n")

    assert [item.path for item in collect("corpus")] == ["corpus/own.py"]
    said = capsys.readouterr().out
    assert "WARNING: left out 4: Git LFS pointer, not the data (`git lfs pull` downloads it)" in said
    assert "WARNING: left out 1: DVC file without its data (run `dvc pull` or `dvc checkout`" in said


def test_links_pipes_and_hidden_files_are_left_out_unless_a_pattern_names_them() -> None:
    write("corpus/plain.py", "corpus/.hidden.py", "elsewhere/far.py")
    Path("corpus/loop").symlink_to(Path("corpus").absolute(), target_is_directory=True)
    Path("corpus/link.py").symlink_to(Path("elsewhere/far.py").absolute())
    Path("corpus/nowhere.py").symlink_to("gone.py")
    os.mkfifo("corpus/pipe.py")

    assert [item.path for item in collect("corpus")] == ["corpus/plain.py"]
    assert left_out() == {HIDDEN: 1, LINK: 3, "not a regular file": 1}
    assert f'mine,corpus/loop,"{LINK}"\n' in Path("data/left_out.csv").read_text()
    found = collect("corpus/link.py", "corpus/.hidden.py", "corpus/**/*.py")
    assert sorted(item.path for item in found) == ["corpus/.hidden.py", "corpus/link.py", "corpus/plain.py"]


def test_a_file_that_several_patterns_name_is_one_document() -> None:
    write("corpus/a.py", "corpus/b.py")

    assert len(collect("./corpus/a.py", "corpus/../corpus/a.py", "corpus/[ab].py", str(Path("corpus").absolute()))) == 2


def test_a_file_below_a_link_that_a_pattern_names_is_the_file_that_it_leads_to() -> None:
    write("real/a.py", "real/b.py")
    Path("linked").symlink_to("real", target_is_directory=True)
    Path("c.py").symlink_to("real/b.py")

    assert [file.name for file in find(["linked", "real", "c.py"])] == ["linked/a.py", "linked/b.py"]
    assert [file.name for file in find(["."]) if not file.flaw] == ["real/a.py", "real/b.py"]


@pytest.mark.parametrize("pattern", ["corpus/**.py", "corpus/***/a.py"])
def test_two_stars_that_are_not_a_whole_part_of_a_path_are_refused(pattern: str) -> None:
    with pytest.raises(UserError, match=r"has to be a whole part of the path, as in `corpus/\*\*/\*\.py`"):
        find([pattern])


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket with the tree, on an S3 of this machine; credentials are in AWS's own variables."""
    with empty_bucket(monkeypatch) as name:
        S3FileSystem.clear_instance_cache()
        for path in TREE:
            boto3.client("s3").put_object(Bucket=name, Key=path, Body=f"# tree/{path}\n".encode())
        yield f"s3://{name}"
        S3FileSystem.clear_instance_cache()


def test_s3_and_file_urls_and_local_paths_leave_out_the_same_hidden_files(bucket: str) -> None:
    write(*(f"tree/{path}" for path in TREE))

    def taken(base: str, pattern: str) -> list[str]:
        return sorted(item.text for item in collect(base + pattern))

    for pattern in ("", "/**/*.py", "/a/.env", "/.c/*.py"):
        local = taken("tree", pattern)
        assert taken(bucket, pattern) == taken(Path("tree").absolute().as_uri(), pattern) == local


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class BreaksOff(Quiet):
    """States a length and gives less."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        self.wfile.write(b'{"text": "x = 1"}\n')


class AsksForALogin(Quiet):
    """Serves nothing without this user and password, and answers by whole pages of unknown length."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Basic " + base64.b64encode(b"bob:s3cr3t").decode()
        self.send_response(200 if known else 401)
        self.end_headers()
        if self.command == "GET" and known:
            self.wfile.write(b"a page\n")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server of `served/`."""
    served = partial(getattr(request, "param", Quiet), directory=str(Path("served").absolute()))
    Path("served").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), served) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_web_page_with_links_is_a_document_and_a_url_with_wildcards_is_what_it_links_to(server: str) -> None:
    write("served/page/inner.html")
    Path("served/page/index.html").write_text("<a href='inner.html'>y</a>\n")
    Path("served/rows.jsonl").write_text('{"text": "a row"}\n')

    found = {item.path.removeprefix(server): item.text for item in collect(f"{server}/page/?download=1")}
    assert found == {"/page/?download=1": "<a href='inner.html'>y</a>\n"}
    assert [item.text for item in collect(f"{server}/page/in*.html")] == ["# served/page/inner.html\n"]
    assert [item.text for item in collect(f"{server}/rows.jsonl?download=true")] == ["a row"]


@pytest.mark.parametrize("server", [BreaksOff], indirect=True)
@pytest.mark.parametrize("name", ["a.py", "a.jsonl"])
def test_a_server_that_breaks_off_ends_the_run_with_the_address(server: str, name: str) -> None:
    write(f"served/{name}")

    with pytest.raises(UnavailableError, match=rf"^{server}/{name}: cannot be read \(.*check the address and the net"):
        collect(f"{server}/{name}")


def test_missing_credentials_are_no_failure_that_a_retry_helps() -> None:
    error = remote_error("s3://bucket/a.txt: cannot be read", NoCredentialsError())

    assert type(error) is UserError
    assert str(error).startswith("s3://bucket/a.txt: cannot be read: access denied (Unable to locate credentials)")


@pytest.mark.parametrize("server", [AsksForALogin], indirect=True)
def test_credentials_of_a_web_server_come_from_netrc(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("netrc").write_text("machine 127.0.0.1 login bob password s3cr3t\n")
    Path("netrc").chmod(0o600)
    with pytest.raises(UserError, match=r"access denied \(.*401"):
        collect(f"{server}/page.txt")

    monkeypatch.setenv("NETRC", str(Path("netrc").absolute()))

    assert [item.text for item in collect(f"{server}/page.txt")] == ["a page\n"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nowhere/*.py", "`memory://nowhere/\\*.py` matches no file; correct the path"),
        ("nosuch://bucket/a.py", "`nosuch://bucket/a.py` cannot be listed .*check the address and the network"),
        ("http://[::1]:8000/a.txt", "fsspec reads `::` as a chain of URLs; name a host without it"),
        ("http://bob:s3cr3t@127.0.0.1:9/a.txt", r"collect\.sources\.0\.globs\.0: the URL holds a password"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        collect(url)
