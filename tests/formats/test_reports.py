from pathlib import Path

import pytest

from stages.formats.reports import read_json, write_json


def test_the_same_values_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": [1.5, "é"]})
    write_json(tmp_path / "b.json", {"a": [1.5, "é"], "b": 1})

    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert read_json(tmp_path / "a.json") == {"a": [1.5, "é"], "b": 1}


def test_nan_is_refused_because_json_has_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
