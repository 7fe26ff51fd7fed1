import json
from pathlib import Path

import pytest

from benchmarks.__main__ import table
from benchmarks.measurements import compare, interleave, record


@pytest.mark.parametrize(("higher_is_better", "ratio"), [(True, 0.5), (False, 2.0)])
def test_a_ratio_above_one_always_means_ours_is_better(higher_is_better: bool, ratio: float) -> None:
    figure = compare("f", [1.0, 2.0, 3.0], [4.0, 4.0, 4.0], unit="s", higher_is_better=higher_is_better)

    assert figure.ratio == ratio
    assert figure.spread == 1.0


def test_sides_run_in_turn() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return len(order)

    results = interleave({"a": lambda: side("a"), "b": lambda: side("b")}, runs=2)

    assert order == ["a", "b", "a", "b"]
    assert results == {"a": [1, 3], "b": [2, 4]}


def test_a_recorded_result_is_rendered_with_its_machine(tmp_path: Path) -> None:
    figure = compare("encoding", [100.0], [50.0], peer_name="p", unit="MB/s", higher_is_better=True, libraries=["rich"])

    record("encode", [figure], tmp_path)

    assert len(json.loads((tmp_path / "encode.json").read_text())) == 1
    lines = table(tmp_path / "encode.json")
    assert "| encoding | 100 MB/s | 50 MB/s (p) | 2.00 | 1 | 0% |" in lines
    assert lines[-1].startswith(f"On {figure.machine}; rich ")
