import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.formats.revision.provenance import (
    PROVENANCE,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    is_observed,
    project_path,
    read_recorded_lock,
    revision_name,
    revision_path,
)
from stages.formats.revision.statement import Provenance
from stages.formats.revision.verify import verify_files
from stages.runtime.errors import UserError
from tests.formats.revision.records import GITSTATE, write_index

SHA256 = hashlib.sha256(b"").hexdigest()


def faults(folder: Path) -> list[tuple[str, str]]:
    found = (fault.split(": ") for fault in verify_files(folder))
    return [(path, problem) for path, problem, *_ in found]


def test_an_intact_revision_has_no_fault(revision: Path) -> None:
    assert verify_files(revision) == []


@pytest.mark.parametrize("path", [".gitattributes", ".cache/evil.py", "sub/modeling_evil.py", "empty/"])
def test_a_file_that_is_not_listed_is_named_wherever_it_is(revision: Path, path: str) -> None:
    (revision / path).parent.mkdir(exist_ok=True)
    (revision / path).mkdir() if path.endswith("/") else (revision / path).write_text("")

    assert faults(revision) == [(path.rstrip("/"), "is not part of this revision")]


@pytest.mark.parametrize("path", ["modeling_evil.py", "pytorch_model.bin", "sub/config.json", ".gitattributes"])
def test_a_file_that_no_revision_can_hold_is_refused_also_if_the_index_lists_it(revision: Path, path: str) -> None:
    (revision / path).parent.mkdir(exist_ok=True)
    (revision / path).write_text("")
    write_index(revision)

    assert faults(revision) == [(path, "is not a file that a revision can hold")]


def test_links_and_special_files_are_named_and_nothing_is_read_through_them(revision: Path) -> None:
    (revision / "loop").symlink_to(".")
    (revision / "passwords").symlink_to("/etc/passwd")
    os.mkfifo(revision / "pipe")

    said = "is a link or a special file, which no revision holds"
    assert faults(revision) == [("loop", said), ("passwords", said), ("pipe", said)]


def test_every_changed_missing_and_additional_file_is_named(revision: Path) -> None:
    (revision / "config.json").write_text('{"n_layer": 2}')
    (revision / "record/reports/train.json").unlink()
    (revision / "record/reports/more.json").write_text("")

    assert faults(revision) == [
        ("config.json", "differs from what was published"),
        ("record/reports/train.json", "is missing"),
        ("record/reports/more.json", "is not part of this revision"),
    ]
    assert verify_files(revision)[0].startswith("config.json: differs from what was published: expected 44136fa3")


def test_an_index_that_was_written_for_other_files_does_not_fit_the_name(revision: Path) -> None:
    write_index(revision, revision="0" * 16)

    assert [fault.partition(",")[0] for fault in verify_files(revision)] == [f"{PROVENANCE}: names itself {'0' * 16}"]


@pytest.mark.parametrize("number", [None, 1, "urn:parrotflow:revision:1", "urn:parrotflow:revision:20"])
def test_a_revision_of_another_format_is_refused(revision: Path, number: object) -> None:
    index = json.loads((revision / PROVENANCE).read_text())
    index["predicate"]["buildDefinition"]["buildType"] = number
    (revision / PROVENANCE).write_text(json.dumps(index))

    (fault,) = verify_files(revision)
    assert fault.startswith(f"{PROVENANCE}: ")
    assert f"is of the format {number}, and this version of parrotflow reads urn:parrotflow:revision:2" in fault
    assert "the version of parrotflow that published it" in fault


def test_of_a_revision_of_the_first_format_the_version_that_reads_it_is_named(revision: Path) -> None:
    index = {"format": 1, "revision": "0" * 16, "files": {}, "git": GITSTATE.model_dump()}
    (revision / PROVENANCE).write_text(json.dumps(index))

    (fault,) = verify_files(revision)
    assert "is of format 1, which versions of parrotflow before 0.1.0 read, such as its own commit ddddddd" in fault


def test_parameters_other_than_the_recorded_ones_are_a_fault(revision: Path) -> None:
    (revision / RECORDED_PARAMS).write_text("train: {seed: 1, rate: 1e-3}\n")
    write_index(revision)
    assert verify_files(revision) == []

    write_index(revision, parameters={"train": {"seed": 2, "rate": 1e-3}})
    said = f"its externalParameters are not the values of {RECORDED_PARAMS}"
    assert verify_files(revision) == [f"{PROVENANCE}: {said}"]

    (revision / RECORDED_PARAMS).write_text("[" * 100_000)
    write_index(revision, parameters={})
    assert verify_files(revision) == [f"{PROVENANCE}: {said}"]


@pytest.mark.parametrize("path", ["../private.txt", "record/reports/../../../private.txt", "/etc/passwd"])
def test_an_index_that_names_files_outside_the_revision_is_not_followed(revision: Path, path: str) -> None:
    (revision.parent / "private.txt").write_text("mine")
    files = write_index(revision).files | {path: "0" * 64}
    write_index(revision, files=files)

    assert faults(revision) == [(path, "is not a file that a revision can hold")]


@pytest.mark.parametrize("text", [None, "", "{}", "[1]", '{"a":' * 100_000])
def test_without_an_index_nothing_can_be_verified(revision: Path, text: str | None) -> None:
    (revision / PROVENANCE).unlink()
    if text is not None:
        (revision / PROVENANCE).write_text(text)

    (fault,) = verify_files(revision)
    assert fault.startswith(f"{PROVENANCE}: is missing" if text is None else f"{PROVENANCE}: ")
    assert Provenance.find(revision / PROVENANCE) is None


@given(st.dictionaries(st.text(min_size=1), st.text(alphabet="0123456789abcdef", min_size=64, max_size=64)))
def test_a_name_follows_from_content_and_not_from_order_nor_from_what_is_observed(files: dict[str, str]) -> None:
    named = {path: sha256 for path, sha256 in files.items() if not is_observed(path)}
    name = revision_name(named)

    assert revision_name(dict(reversed(named.items()))) == name
    assert revision_name(named | {PROVENANCE: SHA256, revision_path("dvc.lock"): SHA256}) == name
    assert revision_name(named | {"another file": "0" * 64}) != name


@pytest.mark.parametrize(
    "text",
    [
        *("- a\n", "3\n", "stages: [a", "stages: [a]\n", "stages: {train: a}\n", "[" * 100_000, "\xff\xfe\x00\x01"),
        "stages: {train: {cmd: a, outs: [{md5: a}]}}\n",
        "stages: {train: {cmd: a, outs: [{path: ../a, md5: a}]}}\n",
        "stages: !!python/object/apply:os.system [touch harm]\n",
    ],
)
def test_what_is_no_dvc_lock_is_damaged_and_says_why(revision: Path, text: str) -> None:
    (revision / RECORDED_LOCK).write_text(text)

    with pytest.raises(UserError, match=rf"^damaged: {RECORDED_LOCK}: (not a dvc\.lock \(|has the output)"):
        read_recorded_lock(revision)
    assert not Path("harm").exists()


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("model/config.json", "config.json"),
        ("data/card/README.md", "README.md"),
        ("data/card/curves.png", "curves.png"),
        ("reports/train.json", "record/reports/train.json"),
        ("dvc.lock", "record/dvc.lock"),
    ],
)
def test_a_file_of_the_project_and_its_copy_in_a_revision_name_each_other(file: str, path: str) -> None:
    assert (revision_path(Path(file)), project_path(path)) == (path, file)


def test_a_revision_keeps_no_copy_of_other_files_of_the_model_and_the_card() -> None:
    for file in ("model/pytorch_model.bin", "model/README.md", "data/card/config.json"):
        assert project_path(revision_path(file)) != file
    assert project_path("record/source.tar.gz") is None
    assert project_path("provenance.json") is None
