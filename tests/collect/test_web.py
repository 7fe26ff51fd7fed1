"""Web pages: HTML files and WARC files, with the extractor of the group `web`."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from stages.collect.sources import web
from stages.collect.sources.web import page_text
from stages.runtime.errors import UserError
from tests.collect.collecting import ORIGIN, collect, left_out
from tests.small_project import ROOT

PAGE = """<html><head><meta charset="{0}"><title>no</title><script>no()</script></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/a">About</a></li></ul></nav>
<main><h1>Parrots</h1><p>A parrot is a bird \u2013 it speaks.</p><p style="display: none">hidden</p></main>
<footer>Imprint</footer></body></html>"""


@pytest.fixture(autouse=True)
def pins(project: Path) -> None:
    locks = ("requirements.lock", "requirements-dev.lock")
    Path("requirements.lock").write_text("".join((ROOT / lock).read_text() for lock in locks))


def pages(glob: str, main_content: bool = True) -> list[tuple[str, str]]:
    """(path, text) of each page."""
    kind = "html" if ".html" in glob else "warc"
    found = collect(ORIGIN | {"kind": kind, "globs": [glob], "main_content": main_content})
    return sorted((one.path, one.text) for one in found)


def record(address: str, content: bytes, *headers: str, status: str = "200 OK", of_type: str = "text/html") -> bytes:
    """A response in a WARC file (ISO 28500)."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {of_type}", *headers, "", ""]
    return warc_record("response", address, "application/http; msgtype=response", "\r\n".join(lines).encode() + content)


def warc_record(kind: str, address: str, of_type: str, block: bytes) -> bytes:
    lines = [
        *("WARC/1.0", f"WARC-Type: {kind}", f"WARC-Target-URI: {address}", "WARC-Date: 2024-05-01T00:00:00Z"),
        *("WARC-Record-ID: <urn:uuid:12345678-1234-1234-1234-123456789012>", f"Content-Type: {of_type}"),
        *(f"Content-Length: {len(block)}", "", ""),
    ]
    return "\r\n".join(lines).encode() + block + b"\r\n\r\n"


def write_warc(name: str, records: Sequence[bytes]) -> None:
    if name.endswith(".gz"):
        Path(name).write_bytes(b"".join(map(gzip.compress, records)))  # one member a record, as crawlers write
    elif name.endswith(".zst"):
        Path(name).write_bytes(b"".join(pa.compress(record, codec="zstd", asbytes=True) for record in records))
    else:
        Path(name).write_bytes(b"".join(records))


@pytest.mark.parametrize("encoding", ["utf-8", "windows-1252"])
def test_the_visible_text_of_a_page_is_a_document_whatever_its_encoding(encoding: str) -> None:
    Path("a.html").write_bytes(PAGE.format(encoding).encode(encoding))

    assert pages("a.html") == [("a.html", "Parrots\n\nA parrot is a bird \u2013 it speaks.")]
    [(_, whole)] = pages("a.html", main_content=False)
    assert "Home" in whole
    assert "Imprint" in whole
    assert "no()" not in whole


def test_a_page_that_is_too_large_or_empty_is_left_out() -> None:
    Path("large.html").write_text("<p>x</p>" * 200_000)
    Path("none.html").write_text("<script>x</script>")
    Path("a.html.gz").write_bytes(gzip.compress(b"<p>parrot</p>"))

    assert pages("*.html*") == [("a.html.gz", "parrot")]
    assert left_out() == {"larger than max_document_bytes": 1, "empty": 1}


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz", "a.warc.zst"])
def test_the_pages_of_a_warc_file_are_documents_by_their_addresses(name: str) -> None:
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (b"<p>chu", b"nked</p>", b""))
    write_warc(
        name,
        [
            warc_record("warcinfo", "", "application/warc-fields", b"software: test\r\n"),
            record("http://a.example/1", "<p>caf\u00e9</p>".encode("latin-1"), of_type="text/html; charset=iso-8859-1"),
            record("http://a.example/2", gzip.compress(b"<p>zipped</p>"), "Content-Encoding: gzip"),
            record("http://a.example/3", chunked, "Transfer-Encoding: chunked"),
            record("http://a.example/4", b"<p>gone</p>", status="404 Not Found"),
            record("http://a.example/5", b"\x89PNG", of_type="image/png"),
            record("https://bob:s3cr3t@a.example/6", b"<p>six</p>"),
        ],
    )

    assert pages(name) == [
        ("http://a.example/1", "caf\u00e9"),
        ("http://a.example/2", "zipped"),
        ("http://a.example/3", "chunked"),
        ("https://a.example/6", "six"),
    ]
    assert left_out() == {"page with another status than 200": 1, "no HTML page": 1}


def test_the_texts_of_a_wet_file_are_taken_as_they_are() -> None:
    write_warc("a.warc.wet.gz", [warc_record("conversion", "http://a.example/1", "text/plain", b"<p> & text\n")])

    assert pages("a.warc.wet.gz") == [("http://a.example/1", "<p> & text\n")]


def test_a_file_that_is_no_warc_is_refused_by_its_name() -> None:
    write_warc("a.warc.gz", [b"hello\n" * 99])

    with pytest.raises(UserError, match=r"^a\.warc\.gz: cannot be read \(Invalid WARC header"):
        pages("a.warc.gz")


def test_an_extractor_that_is_not_pinned_is_refused_since_the_texts_depend_on_it() -> None:
    Path("requirements.lock").write_text((ROOT / "requirements.lock").read_text())
    Path("a.html").write_text("<p>x</p>")

    with pytest.raises(UserError, match=r"^resiliparse: not in requirements\.lock"):
        pages("a.html")


def test_bytes_that_are_no_html_are_no_error() -> None:
    assert page_text(b"", None, True) == ""
    assert page_text(bytes(range(256)) * 9, "no such encoding", False)


def test_without_the_extractor_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.html").write_text(PAGE)
    monkeypatch.setattr(web, "find_spec", lambda name: None if name == "resiliparse" else object())

    with pytest.raises(UserError, match=r"web pages need resiliparse: `pip install -e '\.\[web\]'`, then write"):
        pages("a.html")
