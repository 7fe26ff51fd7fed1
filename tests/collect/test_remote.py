"""Files of HTTP: several at once, continued after a kill or a break, fetched again only if they changed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.collect.__main__ import main, unnoticed
from stages.collect.remote import KIND, PARTS
from stages.collect.sources.tables import Hub
from stages.formats.documents import read_documents
from stages.runtime.cache import CACHE
from stages.runtime.entry import InputsChangedError
from stages.runtime.inputs import Inputs
from tests.small_project import FILES_SOURCE, ROOT, write_project
from tests.versioned_server import Server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def write_params(server: Server, *names: str) -> None:
    globs = [f"{server.address}/{name}" for name in names]
    write_project(Path(), collect__sources=[FILES_SOURCE | {"globs": globs}], collect__shard_bytes=10**7)


def collected(server: Server, *names: str) -> dict[str, bytes]:
    """Path -> text."""
    write_params(server, *names)
    main()
    found = read_documents(Path("data/documents"))
    return {document.path.removeprefix(server.address): document.text.encode() for document in found}


def gets(server: Server) -> list[str | None]:
    return [asked for method, asked in server.asked if method == "GET"]


def test_several_files_are_downloaded_at_once_and_nothing_of_them_is_left_unfinished(server: Server) -> None:
    server.together = threading.Barrier(4)

    found = collected(server, "a.txt", "b.txt", "c.txt", "d.txt")

    assert found == {f"/{name}.txt": server.text(f"/{name}.txt") for name in "abcd"}
    assert not PARTS.exists()


@pytest.mark.parametrize(("version", "asked"), [('"1"', "bytes=400000-"), ('"2"', None)])
def test_a_killed_run_continues_where_the_download_had_come_unless_the_file_changed(
    server: Server, version: str, asked: str | None
) -> None:
    server.breaks_at, server.stalls = 400_000, True
    write_params(server, "a.txt")
    run = subprocess.Popen(
        [sys.executable, "-m", "stages.collect"], env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True
    )
    while not (parts := list(PARTS.glob("*"))) or parts[0].stat().st_size < 400_000:
        assert run.poll() is None
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    server.breaks_at, server.stalls, server.version = None, False, version

    assert collected(server, "a.txt") == {"/a.txt": server.text("/a.txt")}
    assert gets(server) == [None, asked]


def test_an_answer_that_breaks_off_is_continued_in_the_same_run(server: Server) -> None:
    server.breaks_at = 250_000

    assert collected(server, "a.txt") == {"/a.txt": server.text("/a.txt")}
    assert gets(server) == [None, "bytes=250000-", "bytes=500000-"]


def test_an_unchanged_file_is_asked_for_its_version_alone_and_a_changed_one_is_fetched(server: Server) -> None:
    collected(server, "a.txt", "b.txt")
    server.asked.clear()

    collected(server, "a.txt", "b.txt")
    assert server.asked == [("HEAD", None)] * 2

    server.version = '"2"'
    assert collected(server, "a.txt")["/a.txt"] == server.text("/a.txt")
    assert gets(server) == [None]


def test_a_url_that_dvc_asks_about_must_not_change_meanwhile(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed_when_read(*given: Any) -> str:
        server.version = '"2"'
        return ""

    monkeypatch.setattr("stages.collect.__main__.inputs_of_this_stage", lambda: listing(f"{server.address}/a.txt"))
    collected(server, "a.txt", "b.txt")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("stages.collect.__main__.corpus_id", changed_when_read)
        with pytest.raises(InputsChangedError, match=r"a\.txt changed while it was"):
            collected(server, "a.txt", "b.txt")

    assert collected(server, "a.txt")["/a.txt"] == server.text("/a.txt")


def test_a_file_whose_server_names_no_version_is_fetched_each_time(server: Server) -> None:
    server.version = None
    for _ in range(2):
        assert collected(server, "a.txt") == {"/a.txt": server.text("/a.txt")}

    assert gets(server) == [None, None]
    assert list((CACHE / KIND).glob("??/*")) == []


def test_a_url_that_dvc_does_not_ask_about_is_named() -> None:
    assert unnoticed(["https://a/b", "s3://c"], listing("corpus", "s3://c", "https://a/b")) == []

    [line] = unnoticed(["https://a/b", "s3://c", "s3://d/*"], listing("corpus", "s3://c"))

    assert line.startswith("note: params.yaml: collect.sources: https://a/b and 1 more: not among the deps of collect")


def test_a_file_or_folder_that_dvc_does_not_look_at_is_named_too() -> None:
    assert unnoticed(["corpus", "corpus/a/**/*.py", "poems.txt"], listing("corpus", "poems.txt")) == []

    [line] = unnoticed(["my_code/**/*.py", "my_code/*.md", "corpus"], listing("corpus"))

    assert line.startswith("note: params.yaml: collect.sources: my_code: not among the deps of collect in dvc.yaml")


def test_a_folder_of_a_data_set_is_a_place_to_look_at_and_a_data_set_of_the_hub_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("set").mkdir()
    shared = {name: value for name, value in FILES_SOURCE.items() if name != "globs"}
    fields = {"source": None, "path": None, "license": None}
    shared |= {"kind": "hub", "configuration": None, "split": "train", "text": "text", "fields": fields}

    assert Hub.model_validate(shared | {"repository": "set"}).places == ["set"]
    assert Hub.model_validate(shared | {"repository": "a/b", "revision": "0" * 40}).places == []


def listing(*deps: str) -> Inputs:
    """A stage with these deps."""
    return Inputs("collect", "stages.collect", deps, {}, None, {}, {})


def test_a_folder_that_only_a_link_or_two_dots_put_below_a_dep_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("corpus", "other"):
        Path(folder).mkdir()
    Path("other/poem.txt").write_text("x")
    Path("corpus/linked").symlink_to(Path("other").absolute())
    Path("corpus/poem.txt").symlink_to(Path("other/poem.txt").absolute())

    assert unnoticed(["corpus/poem.txt", "other/../corpus/*.txt"], listing("corpus")) == []
    assert unnoticed(["corpus/linked"], listing("corpus", "corpus/linked")) == []
    assert "corpus/../other: not among the deps" in unnoticed(["corpus/../other/*.txt"], listing("corpus"))[0]
    assert "corpus/linked: not among the deps" in unnoticed(["corpus/linked"], listing("corpus"))[0]
