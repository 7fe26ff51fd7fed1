"""Where two versions of a file first differ."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from flows.reproduce.compare import FileDifference, first_difference
from stages.runtime.atomic import file_sha256


def compared(recorded: Path, found: Path) -> FileDifference | None:
    return first_difference(recorded, found, file_sha256(recorded))


def difference(tmp_path: Path, name: str, recorded: str, found: str) -> FileDifference | None:
    for folder, text in (("recorded", recorded), ("found", found)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text, encoding="utf-8")
    return compared(tmp_path / "recorded" / name, tmp_path / "found" / name)


def test_json_by_the_dotted_key(tmp_path: Path) -> None:
    recorded, found = {"a": 1, "b": {"c": [1, 2], "d": 3}}, {"a": 1, "b": {"c": [1, 5], "d": 4}}

    assert difference(tmp_path, "x.json", json.dumps(recorded), json.dumps(found)) == FileDifference(
        "b.c", "[1, 2]", "[1, 5]", "2 values differ"
    )


@pytest.mark.parametrize(
    ("recorded", "found", "only_versions"),
    [
        ({"acc": 0.5}, {"acc": 0.50001}, False),
        ({"acc": 0.5, "versions": {"torch": "1"}}, {"acc": 0.5, "versions": {"torch": "2"}}, True),
        ({"acc": 0.5, "versions": {"torch": "1"}}, {"acc": 0.6, "versions": {"torch": "2"}}, False),
        ({"acc": 0.5, "python": "3.1"}, {"acc": 0.5, "python": "3.2"}, True),
        ({"acc": 0.5}, {"acc": float("nan")}, False),
    ],
)
def test_versions_are_told_from_what_was_computed(
    tmp_path: Path, recorded: object, found: object, only_versions: bool
) -> None:
    differing = difference(tmp_path, "x.json", json.dumps(recorded), json.dumps(found))

    assert differing is not None
    assert differing.only_versions == only_versions


def test_json_of_the_same_values_in_other_bytes_is_a_difference_too(tmp_path: Path) -> None:
    assert difference(tmp_path, "x.json", '{"a": 1}', '{"a":  1}') == FileDifference("", "8 bytes", "9 bytes, others")


def test_a_curve_by_its_first_step(tmp_path: Path) -> None:
    head = "step\tloss\n"

    assert difference(tmp_path, "x.tsv", head + "1\t5.0\n2\t4.0\n3\t3.0\n", head + "1\t5.0\n2\t4.1\n3\t3.1\n") == (
        FileDifference("loss at 2", "4.0", "4.1", "2 values differ")
    )


def test_a_curve_that_ends_early(tmp_path: Path) -> None:
    assert difference(tmp_path, "x.tsv", "step\tloss\n1\t5\n2\t4\n", "step\tloss\n1\t5\n") == FileDifference(
        "loss at 2", "4.0", "None"
    )


def test_weights_by_tensor_with_their_number_and_the_largest_difference(tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    tensors = {"a": np.ones(3, np.float32), "b": np.zeros((2, 2), np.float32), "c": np.ones(1, np.float32)}
    save_file(tensors, first)
    changed = tensors["b"].copy()
    changed[1, 0] = 0.5
    save_file(tensors | {"b": changed}, second)

    assert compared(first, second) == FileDifference(
        "b", "0 at [2]", "0.5 at [2]", "1 of 3 tensors differ, by at most 0.5"
    )


def test_a_number_and_no_number_are_infinitely_far_apart(tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file({"a": np.array([1.0, np.nan, 2.0], np.float32), "b": np.array([np.nan], np.float32)}, first)
    save_file({"a": np.array([1.5, np.nan, np.nan], np.float32), "b": np.array([np.nan], np.float32)}, second)

    assert compared(first, second) == FileDifference(
        "a", "2 at [2]", "nan at [2]", "1 of 2 tensors differ, by at most inf"
    )


@pytest.mark.parametrize("name", ["x.json", "x.tsv", "x.txt"])
def test_equal_bytes_do_not_differ_and_a_missing_file_does(tmp_path: Path, name: str) -> None:
    assert difference(tmp_path, name, "{}", "{}") is None
    assert compared(tmp_path / "recorded" / name, tmp_path / name) == FileDifference("", "a file", "no file")


@pytest.mark.parametrize("name", ["a.json", "a.tsv", "a.safetensors", "a.txt"])
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff", b"[" * 9999, b'"\x00', b"a\tb\n\n1"])
def test_a_file_that_is_not_of_its_kind_differs(tmp_path: Path, name: str, content: bytes) -> None:
    recorded, found = tmp_path / f"recorded-{name}", tmp_path / f"found-{name}"
    recorded.write_bytes(content)
    found.write_bytes(b"step\tloss\n1\t2\n")

    assert compared(recorded, found) is not None
    assert compared(found, recorded) is not None
