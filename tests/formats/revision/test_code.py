"""The code that a revision records of its stages: it is that which the stages read, or it is said to be missing."""

import shutil
from pathlib import Path

import pytest

from stages.formats.revision.consistency import without_code
from stages.formats.revision.layout import RECORDED_LOCK
from stages.formats.revision.lock import read_recorded_lock
from stages.formats.revision.provenance import LeftOut
from stages.formats.revision.verify import verify_files
from stages.publish.commands.published import unrecorded
from stages.runtime.atomic import file_md5
from stages.runtime.stage_code import StageCode
from tests.formats.revision.records import write_index

CODE = "record/code/train.json"


def faults(revision: Path) -> list[tuple[str, str]]:
    return [(fault.path, fault.problem) for fault in verify_files(revision)]


def forge(revision: Path, text: str) -> None:
    """Write other code, and its hashes."""
    before = file_md5(revision / CODE)
    (revision / CODE).write_text(text)
    in_lock(revision, before, file_md5(revision / CODE))


def in_lock(revision: Path, old: str, new: str) -> None:
    lock = (revision / RECORDED_LOCK).read_text()
    assert old in lock
    (revision / RECORDED_LOCK).write_text(lock.replace(old, new))
    write_index(revision)


def test_code_that_a_stage_read_and_the_record_lacks_is_missing(revision: Path) -> None:
    shutil.rmtree(revision / "record/code")
    write_index(revision)

    assert faults(revision) == [(CODE, "missing")]


def test_code_that_was_left_out_is_named_by_an_intact_revision(revision: Path) -> None:
    shutil.rmtree(revision / "record/code")
    write_index(revision, left_out=[LeftOut(path="code/train.json", reason="was edited")])

    assert faults(revision) == []
    assert unrecorded(revision) == " (no code is recorded for train)"


def test_a_stage_whose_code_is_not_of_the_project_is_named_by_an_intact_revision(revision: Path) -> None:
    assert unrecorded(revision) == ""

    forge(revision, StageCode({}, {}).text)

    assert faults(revision) == []
    assert without_code(revision, read_recorded_lock(revision)) == ["train"]
    assert unrecorded(revision) == " (no code is recorded for train)"


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        '{"files": {}}',
        '{"files": {}, "libraries": []}',
        '{"files": {"a.py": 1}, "libraries": {}}',
        '{"files": {"a.py": "f"}, "libraries": {"numpy": null}}',
    ],
)
def test_what_is_no_code_of_a_stage_cannot_be_read(revision: Path, text: str) -> None:
    forge(revision, text)

    assert faults(revision) == [(CODE, "unreadable")]


@pytest.mark.parametrize(
    "command",
    ["python -m stages.train", "python  -u -m  stages.train", "python -m stages.code && python -m stages.train"],
)
def test_a_stage_that_read_no_code_of_its_module_contradicts_its_command(revision: Path, command: str) -> None:
    in_lock(revision, "python -m stages.train", command)
    in_lock(revision, "code/train.json", "corpus.txt")
    shutil.rmtree(revision / "record/code")
    write_index(revision)

    assert (RECORDED_LOCK, "contradicts") in faults(revision)
