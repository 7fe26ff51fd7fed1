"""Whatever a file of a revision holds, verification names it or passes: it never fails itself.

The index is written anew over each damage, so that no hash tells of it.
"""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.formats.revision.lock import DamagedError, read_recorded_lock
from stages.formats.revision.provenance import (
    CARD,
    EVALUATION,
    EXECUTION,
    INPUTS,
    PROVENANCE,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    RECORDED_PIPELINE,
    RECORDED_REQUIREMENTS,
)
from stages.formats.revision.verify import verify_files
from tests.formats.revision.records import write_index

DAMAGES: dict[str, bytes] = {
    "empty": b"",
    "no text": b"\xff\xfe\x00\x01",
    "a list": b"- a\n- b\n",
    "a number": b"3\n",
    "an opened bracket": b"stages: [a",
    "a list of stages": b"stages: [a]\n",
    "a stage that is text": b"stages: {train: a}\n",
    "outputs that are text": b"stages: {train: {cmd: a, outs: [a]}}\n",
    "an output without a path": b"stages: {train: {cmd: a, outs: [{md5: a}]}}\n",
    "an output outside": b"stages: {train: {cmd: a, outs: [{path: ../a, md5: a}]}}\n",
    "a hash that is a number": b"stages: {train: {cmd: a, outs: [{path: model, md5: 3}]}}\n",
    "parameters that are a list": b"stages: {train: {cmd: a, params: [a]}}\n",
    "an object of Python": b"stages: !!python/object/apply:os.system [touch harm]\n",
    "aliases": b"a: &a [1, 1]\nb: &b [*a, *a]\nc: &c [*b, *b]\nstages: {x: {cmd: x, params: {p: {k: *c, l: *c}}}}\n",
    "itself": b"&a [*a]\n",
    "a date that is none": b"stages: 2020-99-99\n",
    "keys that are lists": b"? [a]\n: b\n",
    "many brackets": b"[" * 100_000,
    "many brackets of JSON": b'{"a":' * 100_000,
    "a long number": b"1" * 10_000,
    "not a number": b'{"stages": NaN}',
    "JSON of another kind": b'{"stages": {"train": 1}, "sessions": 3, "sources": {}, "bits_per_byte": "x"}',
    "a head of a card": b"---\nmodel-index: [a]\n---\n",
    "a head with other results": b"---\nmodel-index: [{results: [{metrics: [{type: a}]}]}]\n---\n",
}

OF_NO_STAGE = {"keys that are lists", "many brackets of JSON", "not a number"}
"""Damages that leave a mapping in which no stage is: then it is the model that nothing made."""

KEYS = ["stages", "cmd", "outs", "deps", "params", "path", "md5"]

FILES = (
    RECORDED_LOCK,
    RECORDED_PARAMS,
    RECORDED_PIPELINE,
    RECORDED_REQUIREMENTS,
    EXECUTION,
    INPUTS,
    EVALUATION,
    CARD,
    "record/reports/train.json",
    "config.json",
)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("path", FILES)
def test_a_damaged_file_is_named_or_harmless(revision: Path, path: str, damage: str) -> None:
    (revision / path).write_bytes(DAMAGES[damage])
    write_index(revision)

    assert all(str(fault) for fault in verify_files(revision))


@pytest.mark.parametrize("damage", sorted(DAMAGES.keys() - OF_NO_STAGE))
def test_what_is_no_dvc_lock_is_damaged_and_says_why(revision: Path, damage: str) -> None:
    (revision / RECORDED_LOCK).write_bytes(DAMAGES[damage])
    write_index(revision)

    faults = [str(fault) for fault in verify_files(revision) if fault.path == RECORDED_LOCK]

    assert faults
    if damage in ("an object of Python", "a list", "a list of stages", "an opened bracket"):
        with pytest.raises(DamagedError, match=rf"^damaged: {RECORDED_LOCK}: is no (YAML|dvc\.lock) \("):
            read_recorded_lock(revision)
    assert not Path("harm").exists()


@pytest.mark.parametrize("path", ["config.json", EXECUTION, "record/reports/train.json"])
def test_what_is_no_json_is_damaged(revision: Path, path: str) -> None:
    (revision / path).write_text("{")
    write_index(revision)

    assert [(fault.path, fault.problem) for fault in verify_files(revision)][-1] == (path, "unreadable")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1), cut=st.integers(0, 40), put=st.text(max_size=8), path=st.sampled_from((*FILES, PROVENANCE)))
def test_an_edit_anywhere_in_a_file_is_named_or_harmless(
    revision: Path, at: float, cut: int, put: str, path: str
) -> None:
    before = (revision / path).read_bytes() if (revision / path).is_file() else b"{}"
    place = int(at * len(before))
    (revision / path).write_bytes(before[:place] + put.encode("utf-8", "surrogatepass") + before[place + cut :])
    if path != PROVENANCE:
        write_index(revision)

    assert all(str(fault) for fault in verify_files(revision))

    (revision / path).write_bytes(before)
    write_index(revision)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["stages", "cmd", "outs", "deps", "params", "path", "md5"]), inner, max_size=4
            )
        ),
    )
)
def test_a_lock_of_any_shape_is_damaged_or_a_lock(revision: Path, content: object) -> None:
    (revision / RECORDED_LOCK).write_text(json.dumps(content))

    with suppress(DamagedError):
        assert isinstance(read_recorded_lock(revision), dict)
