from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from stages.formats.reports import Report, read_json, receipt_path, write_json
from stages.runtime.entry import UserError

Values = dict[str, float | str | list[float] | dict[str, float | str | None] | None]


class Receipts(BaseModel):
    seed: int


class Toy(Report):
    path: ClassVar[Path] = Path("reports/toy.json")
    stage: ClassVar[str] = "toy"
    in_receipt: ClassVar[tuple[str, ...]] = ("receipts",)

    values: Values
    receipts: Receipts


class Plain(Report):
    stage: ClassVar[str] = "toy"

    loss: float


leaves = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
values = st.dictionaries(
    st.text(max_size=3),
    leaves | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=2)
    | st.dictionaries(st.text(max_size=3), leaves, max_size=3),
    max_size=4,
)  # fmt: skip


@given(values=values)
def test_a_report_is_read_as_it_was_written_and_its_metrics_hold_no_text(
    values: Values, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("reports") / "toy.json"
    report = Toy(values=values, receipts=Receipts(seed=3))

    report.write(path)

    assert Toy.read(path) == Toy.find(path) == report
    assert read_json(path).keys() == {"values"}
    assert not any(isinstance(leaf, str) for leaf in leaves_of(read_json(path)))


def leaves_of(values: object) -> list[object]:
    return [leaf for one in values.values() for leaf in leaves_of(one)] if isinstance(values, dict) else [values]


def test_a_report_has_its_path_and_one_without_a_receipt_is_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Toy(values={}, receipts=Receipts(seed=3)).write()
    Plain(loss=1.5).write(tmp_path / "plain.json")

    assert Toy.read().receipts.seed == 3
    assert Plain.read(tmp_path / "plain.json").loss == 1.5
    assert not receipt_path(tmp_path / "plain.json").exists()
    Path("plain.json").write_text('{"loss": "none"}')
    with pytest.raises(UserError, match=r"plain\.json: loss: Input should be a valid number.*; run `dvc repro toy`"):
        Plain.read(Path("plain.json"))


@pytest.mark.parametrize("damaged", ["toy.json", "toy_receipt.json"])
def test_a_file_that_is_missing_or_damaged_is_named(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "toy.json"
    Toy(values={}, receipts=Receipts(seed=3)).write(path)
    assert receipt_path(path).name == "toy_receipt.json"

    (tmp_path / damaged).write_text("{")
    with pytest.raises(UserError, match=rf"{damaged}: cannot be read .*; run `dvc repro toy`"):
        Toy.read(path)
    (tmp_path / damaged).unlink()
    with pytest.raises(UserError, match=rf"{damaged}: cannot be read .*; run `dvc repro toy`"):
        Toy.read(path)
    assert Toy.find(path) is None


def test_the_same_values_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": [1.5, "é"]})
    write_json(tmp_path / "b.json", {"a": [1.5, "é"], "b": 1})

    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert read_json(tmp_path / "a.json") == {"a": [1.5, "é"], "b": 1}


def test_nan_is_refused_because_json_has_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
