import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measurements import compare, cpu_kind, interleave, markdown, median_interval, record, recorded


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


def test_a_recorded_result_is_rendered_with_its_machine_and_commit(tmp_path: Path) -> None:
    figure = compare("encoding", [100.0], [50.0], peer_name="p", unit="MB/s", higher_is_better=True, libraries=["rich"])

    record("encode", [figure], tmp_path, quick=False)

    assert len(json.loads((tmp_path / "encode.json").read_text())) == 1
    lines = markdown(recorded("encode", tmp_path))
    assert "| encoding | 100 MB/s | 50 (2.00) |" in lines
    assert re.fullmatch(rf"On {re.escape(figure.machine)}\. rich .*, commit [0-9a-f]{{8,}}(-dirty)?\.", lines[-1])


def test_a_figure_that_is_recorded_again_keeps_its_commit(tmp_path: Path) -> None:
    earlier = replace(compare("f", [1.0], None, unit="s", higher_is_better=False), commit="01234567")

    record("speed", [earlier], tmp_path, quick=False)

    assert recorded("speed", tmp_path) == [earlier]


def test_a_quick_run_leaves_the_figures_on_record_as_they_are(tmp_path: Path) -> None:
    record("encode", [compare("f", [100.0], [50.0], unit="MB/s", higher_is_better=True)], tmp_path, quick=False)
    known = recorded("encode", tmp_path)

    record("encode", [compare("f", [9.0], [50.0], unit="MB/s", higher_is_better=True)], tmp_path, quick=True)

    assert [figure.ours for figure in known] == [100.0]
    assert recorded("encode", tmp_path) == known


def test_a_machine_that_slows_down_leaves_the_interval_of_the_ratio_narrow() -> None:
    speeds = [100.0, 90.0, 80.0, 50.0, 40.0, 30.0]

    figure = compare("f", speeds, [speed / 2 for speed in speeds], unit="tokens/s", higher_is_better=True)

    assert figure.ratio_text == "2.00 (2.00 to 2.00)"
    assert "| f | 65 tokens/s (unsure: 108%) | 32.5 (2.00 (2.00 to 2.00)) |" in markdown([figure])


def test_five_runs_are_too_few_for_an_interval_of_the_median() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (1.0, 6.0)
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_a_table_has_a_row_for_each_figure_and_peer() -> None:
    first = compare("time of a step", [1234.5, 1300.0], [2000.0], peer_name="p", unit="s", higher_is_better=True)
    second = replace(first, figure="memory | GB", ours=0.5, unit="GB", peer=None, ratio=None, commit="01234567")

    lines = markdown([first, second])

    assert [line for line in lines if line.startswith("| ")] == [
        "| figure | ours | p |",
        "| time of a step | 1,267 s | 2,000 (0.63) |",
        "| memory \\| GB | 0.5 GB |  |",
    ]
    assert lines[-1] == f"On {first.machine}. python {first.versions['python']}, commit 01234567."


def test_of_figures_without_a_peer_each_part_is_a_column() -> None:
    figures = [
        compare(f"{part}: {what}", [value], None, unit="s", higher_is_better=False)
        for what, part, value in (("price", "collect", 1.0), ("price", "clean", 2.0), ("time", "clean", 3.0))
    ]

    assert [line for line in markdown(figures) if line.startswith("| ")] == [
        "| figure | collect | clean |", "| price | 1 s | 2 s |", "| time |  | 3 s |",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        (["sse2", "avx2"], "AVX2"),
        (["avx2", "avx512f", "avx512_bf16"], "AVX-512 without AMX"),
        (["avx2", "avx512f", "amx_bf16"], "AMX"),
        (["asimd"], ""),
    ],
)
def test_a_figure_names_the_kind_of_its_cpu(flags: list[str], kind: str) -> None:
    assert cpu_kind(flags) == kind
