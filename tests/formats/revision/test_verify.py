import hashlib
import json
import os
import shutil
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from stages.formats.revision.consistency import unmade, without_code
from stages.formats.revision.execution import Execution
from stages.formats.revision.lock import read_recorded_lock
from stages.formats.revision.provenance import (
    EXECUTION,
    PROVENANCE,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    LeftOut,
    is_observed,
    record_path,
    revision_name,
)
from stages.formats.revision.verify import verify_files
from stages.publish.commands.published import unrecorded
from stages.runtime.atomic import file_md5
from stages.runtime.stage_code import StageCode
from tests.formats.revision.records import execution, write_index

SHA256 = hashlib.sha256(b"").hexdigest()


def faults(folder: Path) -> list[tuple[str, str]]:
    return [(fault.path, fault.problem) for fault in verify_files(folder)]


def test_an_intact_revision_has_no_fault(revision: Path) -> None:
    assert verify_files(revision) == []


@pytest.mark.parametrize("path", [".gitattributes", ".cache/evil.py", "sub/modeling_evil.py", "empty/"])
def test_a_file_that_is_not_listed_is_named_wherever_it_is(revision: Path, path: str) -> None:
    (revision / path).parent.mkdir(exist_ok=True)
    (revision / path).mkdir() if path.endswith("/") else (revision / path).write_text("")

    assert faults(revision) == [(path.rstrip("/"), "unlisted")]


def test_links_and_special_files_are_named_and_nothing_is_read_through_them(revision: Path) -> None:
    (revision / "loop").symlink_to(".")
    (revision / "passwords").symlink_to("/etc/passwd")
    os.mkfifo(revision / "pipe")

    assert faults(revision) == [("loop", "link"), ("passwords", "link"), ("pipe", "link")]


def test_a_changed_byte_of_the_index_is_found_without_a_signature(revision: Path) -> None:
    index = (revision / PROVENANCE).read_bytes()
    for at in range(len(index)):
        (revision / PROVENANCE).write_bytes(index[:at] + bytes([index[at] ^ 1]) + index[at + 1 :])
        assert {path for path, _ in faults(revision)} == {PROVENANCE}, at


def test_every_changed_missing_and_additional_file_is_named(revision: Path) -> None:
    (revision / "config.json").write_text('{"n_layer": 2}')
    (revision / "record/reports/train.json").unlink()
    (revision / "record/reports/more.json").write_text("")

    assert faults(revision) == [
        ("config.json", "differs"),
        ("record/reports/train.json", "missing"),
        ("record/reports/more.json", "unlisted"),
    ]
    assert str(verify_files(revision)[0]).startswith("config.json: differs from what was published: expected 44136fa3")


def test_execution_facts_of_other_weights_are_named(revision: Path) -> None:
    execution("0" * 64).write(revision / EXECUTION)
    write_index(revision)

    assert faults(revision) == [(EXECUTION, "unbound")]


@pytest.mark.parametrize("out", ["model/config.json/x", "model/config.jso"])
def test_a_file_is_made_by_the_stage_whose_output_it_is_or_is_in(revision: Path, out: str) -> None:
    lock = YAML(typ="safe").load(revision / RECORDED_LOCK)
    lock["stages"]["train"]["outs"][0]["path"] = out
    YAML(typ="safe").dump(lock, revision / RECORDED_LOCK)
    provenance = write_index(revision)

    assert faults(revision) == [("config.json", "unknown"), ("model.safetensors", "unknown")]
    assert unmade(provenance, read_recorded_lock(revision)) == ["config.json", "model.safetensors"]


def test_an_index_that_was_written_for_other_files_does_not_fit_the_name(revision: Path) -> None:
    write_index(revision, revision="0" * 16)

    assert faults(revision) == [(PROVENANCE, "differs")]


def test_an_index_of_an_older_version_is_said_to_be_one(revision: Path) -> None:
    index = json.loads((revision / PROVENANCE).read_text())
    index.pop("checksum")
    (revision / PROVENANCE).write_text(json.dumps(index))

    said = "an older version of parrotflow; delete the revision and run `dvc repro -f -s publish`"
    assert said in str(verify_files(revision)[0])


@pytest.mark.parametrize("path", ["../private.txt", "record/reports/../../../private.txt", "/etc/passwd"])
def test_an_index_that_names_files_outside_the_revision_is_not_followed(revision: Path, path: str) -> None:
    (revision.parent / "private.txt").write_text("mine")
    files = write_index(revision).files | {path: "0" * 64}
    write_index(revision, files=files)

    assert faults(revision) == [(path, "missing")]


def test_a_date_and_a_number_as_a_key_among_the_parameters_contradict_nothing(revision: Path) -> None:
    lock = YAML(typ="safe").load(revision / RECORDED_LOCK)
    lock["stages"]["train"]["params"]["params.yaml"]["mine"] = {"since": date(2024, 1, 1), "weights": {1: 0.5}}
    YAML(typ="safe").dump(lock, revision / RECORDED_LOCK)
    with (revision / RECORDED_PARAMS).open("a") as file:
        file.write("mine: {since: 2024-01-01, weights: {1: 0.5}}\n")
    write_index(revision)

    assert faults(revision) == []


@pytest.mark.parametrize("text", [None, "", "{}", "[1]"])
def test_without_an_index_nothing_can_be_verified(revision: Path, text: str | None) -> None:
    (revision / PROVENANCE).unlink()
    if text is not None:
        (revision / PROVENANCE).write_text(text)

    assert faults(revision) == [(PROVENANCE, "missing" if text is None else "unreadable")]


@given(st.dictionaries(st.text(min_size=1), st.text(alphabet="0123456789abcdef", min_size=64, max_size=64)))
def test_a_name_follows_from_content_and_not_from_order_nor_from_what_is_observed(files: dict[str, str]) -> None:
    named = {path: sha256 for path, sha256 in files.items() if not is_observed(path)}
    name = revision_name(named)

    assert revision_name(dict(reversed(named.items()))) == name
    assert revision_name(named | {PROVENANCE: SHA256, record_path("dvc.lock"): SHA256}) == name
    assert revision_name(named | {"another file": "0" * 64}) != name


def test_execution_facts_are_read_as_they_were_written(tmp_path: Path) -> None:
    execution(SHA256).write(tmp_path / "execution.json")

    assert Execution.find(tmp_path / "execution.json") == execution(SHA256)
    assert Execution.find(tmp_path / "none.json") is None


CODE = "record/code/train.json"


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
