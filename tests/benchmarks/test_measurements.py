import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import common
from benchmarks.measurements import Measurement, compare, cpu_kind, interleave, median_interval, record, recorded
from benchmarks.tables import plain, table, without_common


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
    lines = table(recorded("encode", tmp_path))
    assert "| figure | ours | p |" in lines
    assert "| encoding | 100 MB/s | 50 (2.00) |" in lines
    assert re.fullmatch(rf"On {re.escape(plain(figure.machine))}; rich .*; commit [0-9a-f]{{8,}}(-dirty)?\.", lines[-1])


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
    assert "| f | 65 tokens/s (unsure: 108%) | 32.5 (2.00; 2.00 to 2.00) |" in table([figure])


def test_five_runs_are_too_few_for_an_interval_of_the_median() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (1.0, 6.0)
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_a_figure_that_varies_by_more_than_a_fifth_is_called_unsure(tmp_path: Path) -> None:
    steady, varying = (
        compare(name, series, None, unit="s", higher_is_better=False)
        for name, series in (("steady", [1.0, 1.1]), ("varying", [1.0, 1.5]))
    )

    record("speed", [steady, varying], tmp_path, quick=False)

    lines = table(recorded("speed", tmp_path))
    assert [line.split("|")[1].strip() for line in lines if "unsure" in line] == ["varying"]


def test_a_table_has_a_row_for_each_figure_and_a_column_for_each_peer() -> None:
    def figure(name: str, ours: list[float], peer_name: str) -> Measurement:
        return compare(name, ours, [2000.0], peer_name=peer_name, unit="s", higher_is_better=True, libraries=["rich"])

    first, second = "time of a step on 1 core, 7 MB", "time of a step on 12 cores, 7 MB"
    figures = [figure(first, [1234.5, 1300.0], "p"), figure(second, [0.5], "p"), figure(first, [1234.5, 1300.0], "q")]

    lines = table(figures, everywhere=common([figures, figures[:1]]))

    assert [line for line in lines if line.startswith("| ")] == [
        "| time of a step on … 7 MB | ours | p | q |",
        "| 1 core | 1,267 s | 2,000 (0.63) | 2,000 (0.63) |",
        "| 12 cores | 0.5 s | 2,000 (0.00) |  |",
    ]
    assert lines[-1] == "On the same machine; 1 to 2 runs."


def test_a_version_is_common_if_several_results_depend_on_it() -> None:
    both, other = (
        compare("f", [1.0], None, unit="s", higher_is_better=False, libraries=names)
        for names in (["rich", "scipy"], ["rich"])
    )
    machine, rich = both.machine.split(", "), f"rich {both.versions['rich']}"

    assert set(common([[both], [other]])) == {*machine, rich, f"python {both.versions['python']}"}
    assert rich not in common([[both], [replace(other, versions={"rich": "0"})]])


def test_what_one_result_was_measured_otherwise_stays_common_to_the_rest() -> None:
    usual = compare("f", [1.0], None, unit="s", higher_is_better=False, libraries=["rich"])
    usual = replace(usual, machine="Some CPU, 2 cores")
    on_gpu = replace(usual, machine="Some CPU, 16 cores, Some GPU", versions={"rich": "0"})

    assert {"Some CPU", "2 cores", f"rich {usual.versions['rich']}"} <= set(common([[usual], [usual], [on_gpu]]))


def test_many_peers_of_few_figures_are_rows() -> None:
    figures = [compare("f", [1.0], [2.0], peer_name=name, unit="s", higher_is_better=False) for name in "abcd"]

    assert [line for line in table(figures) if line.startswith("| ")] == [
        "| figure | f |", "| ours | 1 s |", *(f"| {name} | 2 (2.00) |" for name in "abcd"),
    ]  # fmt: skip


def test_names_of_two_parts_are_rows_and_columns_and_a_column_of_one_value_is_a_line() -> None:
    def figure(name: str, value: float, unit: str) -> Measurement:
        return compare(name, [value], None, unit=unit, higher_is_better=False)

    values = {"memory": ("GB", [1.0, 2.0, 3.0]), "workers": ("", [2.0, 2.0, 2.0])}
    figures = [
        figure(f"{stage}: {what}", numbers[number], unit)
        for what, (unit, numbers) in values.items()
        for number, stage in enumerate(("collect", "clean", "train"))
    ]

    assert [line for line in table(figures) if line and not line.startswith("On ")] == [
        "Of each: workers 2.", "|  | memory |", "|---|--:|",
        "| collect | 1 GB |", "| clean | 2 GB |", "| train | 3 GB |",
    ]  # fmt: skip
    assert "| memory (GB) | 1 | 2 |" in table([*figures[:2], *figures[3:5], figure("collect: a", 1, "s")])


def test_few_common_words_stay_in_the_names() -> None:
    assert without_common(["a step of 1", "a step of 2"])[0] == ""
    assert without_common(["a step is of 1, cold", "a step is of 2, cold"])[0] == "a step is of … cold"


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
