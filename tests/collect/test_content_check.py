"""Files that did not change are not read again, and a change is never missed."""

import os
import shutil
import time
from pathlib import Path

import pytest

from stages.collect import content_check, reading
from stages.collect.__main__ import main
from stages.collect.content_check import SEEN, SeenFiles, UnreadDocument, check_content
from stages.collect.trie import CACHE_NAME
from stages.formats.documents import Document, document_id, read_documents
from stages.runtime.cache import CACHE, ResultLog, cache_key
from stages.runtime.entry import UserError
from tests.small_project import folder_bytes, write_corpus, write_project


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    write_corpus(tmp_path, 12)
    return tmp_path


def age(path: Path) -> None:
    """Wait until a file has settled: a change of a file this moment is not trusted to be seen by its times."""
    while time.time_ns() - path.stat().st_ctime_ns <= content_check.SETTLED_NS:
        time.sleep(0.05)


def collect() -> list[Document]:
    main()
    return list(read_documents(Path("data/documents")))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are looked at from here on."""
    looked: list[str] = []

    def watched(content: bytes | str) -> content_check.ContentCheck:
        found = check_content(content)
        looked.append(found.text or "")
        return found

    for module in (content_check, reading):
        monkeypatch.setattr(module, "check_content", watched)
    return looked


def corpus() -> list[Path]:
    return sorted(path for path in Path("corpus").rglob("*") if path.is_file())


def test_a_second_run_reads_nothing_and_gives_the_same_bytes(read: list[str]) -> None:
    age(max(corpus(), key=lambda path: path.stat().st_ctime_ns))
    collect()
    before, first = folder_bytes(Path("data")), len(read)
    assert first >= 12

    collect()

    assert len(read) == first
    assert folder_bytes(Path("data")) == before


def test_without_the_cache_of_shards_the_texts_are_read_again(read: list[str]) -> None:
    age(max(corpus(), key=lambda path: path.stat().st_ctime_ns))
    documents = collect()
    shutil.rmtree(CACHE / CACHE_NAME)

    assert collect() == documents


def test_an_edit_of_the_same_size_and_time_is_seen(read: list[str]) -> None:
    edited = corpus()[0]
    age(max(corpus(), key=lambda path: path.stat().st_ctime_ns))
    collect()
    info, text = edited.stat(), edited.read_text()

    edited.write_text(text[:-2] + "#\n")
    os.utime(edited, ns=(info.st_atime_ns, info.st_mtime_ns))

    assert edited.stat().st_size == info.st_size
    assert text[:-2] + "#\n" in {document.text for document in collect()}


def test_a_file_written_this_moment_is_read_again_next_time(read: list[str]) -> None:
    corpus()[0].write_text("x = 1  # written this moment\n")
    collect()
    read.clear()

    collect()

    assert "x = 1  # written this moment\n" in read


def test_a_file_whose_name_is_no_unicode_is_read_each_time(read: list[str]) -> None:
    odd = os.fsdecode(b"corpus/caf\xe9.py")
    Path(odd).write_text("x = 1  # an odd name\n")
    age(Path(odd))
    collect()
    shutil.rmtree(CACHE / CACHE_NAME)

    assert "x = 1  # an odd name\n" in {document.text for document in collect()}


@pytest.mark.parametrize("torn", ["", "{", '00000000 {"code": 1}', "[]"])
def test_what_a_crash_left_of_the_notes_is_not_used(torn: str) -> None:
    notes = SeenFiles().log.file
    notes.parent.mkdir(parents=True)
    notes.write_text(torn)

    assert SeenFiles().known("corpus/a.py", (1, 2, 3, 4)) is None
    assert len(collect()) == 12


def test_damaged_notes_are_not_used() -> None:
    notes, state = SeenFiles(), (1, 2, 3, 4)
    notes.remember("corpus/a.py", state, check_content("x = 1\n"))
    notes.save()
    assert SeenFiles().known("corpus/a.py", state)
    text = notes.log.file.read_text()

    notes.log.file.write_text(text.replace(', 6, ""', ', 7, ""'))

    assert notes.log.file.read_text() != text
    assert SeenFiles().known("corpus/a.py", state) is None


def test_a_file_that_changed_as_the_run_began_is_not_noted_however_late_its_check_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = time.time_ns()
    notes, state = SeenFiles(), (6, changed, changed, 1)
    monkeypatch.setattr(time, "time_ns", lambda: changed + 10 * content_check.SETTLED_NS)

    notes.remember("corpus/a.py", state, check_content("x = 1\n"))
    notes.save()

    assert SeenFiles().known("corpus/a.py", state) is None


def test_notes_of_files_that_are_gone_and_of_other_code_are_dropped() -> None:
    age(max(corpus(), key=lambda path: path.stat().st_ctime_ns))
    ResultLog(SEEN, cache_key("other code")).append("corpus/a.py", [1])
    collect()
    gone = corpus()[0]
    assert gone.as_posix() in SeenFiles().log.read()

    gone.unlink()
    collect()

    assert SeenFiles().log.read().keys() == {path.as_posix() for path in corpus()}
    assert len(list((CACHE / SEEN).glob("*/*"))) == 1


def test_a_file_that_changes_while_it_is_collected_is_named() -> None:
    Path("a.py").write_text("another text\n")
    document = UnreadDocument(document_id("text\n"), "s", "", "a.py", "", "", 5)

    with pytest.raises(UserError, match=r"a\.py changed while it was collected; run again"):
        document.read()
