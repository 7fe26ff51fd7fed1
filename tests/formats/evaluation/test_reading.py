from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from stages.formats.evaluation.reading import read_with_receipt, receipt_path, write_with_receipt
from stages.formats.reports import read_json
from stages.runtime.entry import UserError

Values = dict[str, float | str | list[float] | dict[str, float | str | None] | None]


class Receipts(BaseModel):
    seed: int


class Report(BaseModel):
    values: Values
    receipts: Receipts


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
    report = Report(values=values, receipts=Receipts(seed=3))

    write_with_receipt(path, report, ["receipts"])

    assert read_with_receipt(path, Report, "toy") == report
    assert read_json(path).keys() == {"values"}
    assert not any(isinstance(leaf, str) for leaf in leaves_of(read_json(path)))


def leaves_of(values: object) -> list[object]:
    return [leaf for one in values.values() for leaf in leaves_of(one)] if isinstance(values, dict) else [values]


@pytest.mark.parametrize("damaged", ["toy.json", "toy_receipt.json"])
def test_a_file_that_is_missing_or_damaged_is_named(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "toy.json"
    write_with_receipt(path, Report(values={}, receipts=Receipts(seed=3)), ["receipts"])
    assert receipt_path(path).name == "toy_receipt.json"

    (tmp_path / damaged).write_text("{")
    with pytest.raises(UserError, match=rf"{damaged}: cannot be read .*; run `dvc repro toy`"):
        read_with_receipt(path, Report, "toy")
    (tmp_path / damaged).unlink()
    with pytest.raises(UserError, match=rf"{damaged}: cannot be read .*; run `dvc repro toy`"):
        read_with_receipt(path, Report, "toy")
