import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.execution import Execution, read_execution, write_execution
from stages.formats.revision.layout import EXECUTION, PROVENANCE, is_observed, record_path, revision_name
from stages.formats.revision.provenance import Provenance, write_provenance
from stages.formats.revision.verify import verify_files
from stages.runtime.hashes import file_sha256

SHA256 = hashlib.sha256(b"").hexdigest()


def write_index(folder: Path) -> None:
    files = {
        path.relative_to(folder).as_posix(): file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != PROVENANCE
    }
    provenance = Provenance(
        revision=revision_name(files),
        files=files,
        weights_sha256=weights_sha256(folder),
        git=None,
        not_in_lock=[],
        publish={},
        training=None,
        published_from={},
    )
    write_provenance(folder / PROVENANCE, provenance)


def execution(weights: str) -> Execution:
    return Execution(weights_sha256=weights, fingerprint="f", sessions=[], checkpoints={10: SHA256})


@pytest.fixture
def revision(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "record/reports").mkdir(parents=True)
    (tmp_path / record_path("reports/train.json")).write_text("{}")
    write_execution(execution(weights_sha256(tmp_path)), tmp_path / EXECUTION)
    write_index(tmp_path)
    return tmp_path


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
    assert str(verify_files(revision)[0]).startswith(
        "config.json differs from what was published: expected 44136fa355b"
    )


def test_execution_facts_of_other_weights_are_named(revision: Path) -> None:
    write_execution(execution("0" * 64), revision / EXECUTION)
    write_index(revision)

    assert faults(revision) == [(EXECUTION, "unbound")]


def test_an_index_that_was_written_for_other_files_does_not_fit_the_name(revision: Path) -> None:
    index = (revision / PROVENANCE).read_text()
    name = revision_name(dict.fromkeys(("model.safetensors", "config.json"), "0"))
    (revision / PROVENANCE).write_text(index.replace(f'"revision": "{index_name(index)}"', f'"revision": "{name}"'))

    assert faults(revision) == [(PROVENANCE, "differs")]


def index_name(index: str) -> str:
    return index.split('"revision": "')[1].split('"', maxsplit=1)[0]


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
    assert revision_name(named | {"another": "0" * 64}) != name


def test_execution_facts_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_execution(execution(SHA256), tmp_path / "execution.json")

    assert read_execution(tmp_path / "execution.json") == execution(SHA256)
    assert read_execution(tmp_path / "none.json") is None
