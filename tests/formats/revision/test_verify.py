import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.formats.revision.execution import read_execution, write_execution
from stages.formats.revision.layout import (
    EXECUTION,
    PROVENANCE,
    STATEMENT,
    is_observed,
    record_path,
    revision_name,
)
from stages.formats.revision.verify import verify_files
from tests.formats.revision.records import execution, write_attested, write_index

SHA256 = hashlib.sha256(b"").hexdigest()


def faults(folder: Path) -> list[tuple[str, str]]:
    return [(fault.path, fault.problem) for fault in verify_files(folder)]


def test_an_intact_revision_has_no_fault(revision: Path) -> None:
    assert verify_files(revision) == []


def test_what_the_hub_and_its_client_add_is_no_fault(revision: Path) -> None:
    (revision / ".gitattributes").write_text("")
    (revision / ".cache/huggingface").mkdir(parents=True)
    (revision / ".cache/huggingface/config.json.metadata").write_text("")

    assert verify_files(revision) == []


def test_every_changed_missing_and_additional_file_is_named(revision: Path) -> None:
    (revision / "config.json").write_text('{"n_layer": 2}')
    (revision / "record/reports/train.json").unlink()
    (revision / "record/reports/more.json").write_text("")

    assert faults(revision) == [
        ("config.json", "differs"),
        ("record/reports/train.json", "missing"),
        ("record/reports/more.json", "unlisted"),
    ]
    assert str(verify_files(revision)[0]).startswith("config.json differs from what was published: expected 44136fa3")


def test_execution_facts_of_other_weights_are_named(revision: Path) -> None:
    write_execution(execution("0" * 64), revision / EXECUTION)
    write_attested(revision)

    assert faults(revision) == [(EXECUTION, "unbound")]


def test_an_index_that_was_written_for_other_files_does_not_fit_the_name(revision: Path) -> None:
    name = write_index(revision).revision
    index = (revision / PROVENANCE).read_text()
    (revision / PROVENANCE).write_text(index.replace(f'"revision": "{name}"', f'"revision": "{name[::-1]}"'))
    (revision / STATEMENT).unlink()

    assert faults(revision) == [(PROVENANCE, "differs")]


def test_a_statement_of_another_index_is_named(revision: Path) -> None:
    (revision / "config.json").write_text('{"n_layer": 2}')
    write_index(revision)

    assert faults(revision) == [(STATEMENT, "differs")]

    (revision / STATEMENT).write_text("{}")
    assert faults(revision) == [(STATEMENT, "unreadable")]


def test_an_index_that_names_files_outside_the_revision_is_not_followed(revision: Path) -> None:
    (revision.parent / "private.txt").write_text("mine")
    index = (revision / PROVENANCE).read_text()
    (revision / PROVENANCE).write_text(index.replace('"config.json"', '"../private.txt"'))

    assert ("../private.txt", "missing") in faults(revision)


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
    write_execution(execution(SHA256), tmp_path / "execution.json")

    assert read_execution(tmp_path / "execution.json") == execution(SHA256)
    assert read_execution(tmp_path / "none.json") is None
