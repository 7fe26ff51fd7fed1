from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel

from stages.formats.reports import Report, read_json, write_json
from stages.runtime.errors import UserError


class Receipts(BaseModel):
    seed: int


class Toy(Report):
    path: ClassVar[Path] = Path("reports/toy.json")
    stage: ClassVar[str] = "toy"

    loss: float
    receipts: Receipts


def test_a_report_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = Toy(loss=1.5, receipts=Receipts(seed=3))

    report.write()
    report.write(Path("elsewhere.json"))

    assert Toy.read() == Toy.find() == Toy.read(Path("elsewhere.json")) == report
    assert read_json(Path("reports/toy.json")) == {"loss": 1.5, "receipts": {"seed": 3}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "Invalid JSON"),
        ("\udcff", "Invalid JSON"),
        ('{"loss": 1, "receipts": {}}', r"receipts\.seed: Field required"),
        (None, "cannot be read"),
    ],
)
def test_a_report_that_is_missing_or_damaged_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "toy.json"
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))

    with pytest.raises(UserError, match=rf"toy\.json: {said}.*; run `dvc repro toy`"):
        Toy.read(path)
    assert Toy.find(path) is None


@pytest.mark.parametrize("content", ["{", "\udcff"])
def test_a_file_that_is_no_json_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "toy.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=r"toy\.json: not valid JSON .*; delete it and run `dvc repro`"):
        read_json(path)


def test_the_same_values_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": [1.5, "é"]})
    write_json(tmp_path / "b.json", {"a": [1.5, "é"], "b": 1})

    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert read_json(tmp_path / "a.json") == {"a": [1.5, "é"], "b": 1}


def test_nan_is_refused_because_json_has_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
