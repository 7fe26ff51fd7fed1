"""Figures are the same bytes for the same runs, have their fonts with them, and are told apart without color."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb

from flows.experiments.forms import COLUMN_INCHES, LINE_STYLES, _looks, write_figure
from flows.experiments.results import fit_of
from stages.formats.curves import Points
from tests.flows.experiments.some_runs import some_data


def draw(folder: Path, name: str) -> dict[str, bytes]:
    data = some_data(folder)
    paths = write_figure(folder, data, name, {"law": fit_of(data, "law")})
    return {path.suffix: path.read_bytes() for path in paths}


@pytest.mark.parametrize("name", ["curves", "points"])
def test_a_figure_has_the_same_bytes_each_time_in_two_forms_a_column_wide(tmp_path: Path, name: str) -> None:
    first = draw(tmp_path, name)

    assert draw(tmp_path, name) == first
    assert set(first) == {".pdf", ".svg"}
    assert f'width="{COLUMN_INCHES * 72:g}pt"'.encode() in first[".svg"]
    assert re.search(rb"/MediaBox \[ 0 0 234 ", first[".pdf"])


def test_fonts_are_in_the_pdf_as_truetype(tmp_path: Path) -> None:
    pdf = draw(tmp_path, "points")[".pdf"]
    streams = b"".join(_inflated(part) for part in re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL))

    assert b"/FontFile2" in pdf + streams
    assert b"/Type3" not in pdf + streams


def _inflated(part: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(part)
    except zlib.error:
        return b""


def test_labels_are_printed_as_they_are_and_a_run_without_cost_has_no_place_on_a_power_law(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    law, experiment = fit_of(data, "law"), data.experiment
    experiment.metrics["cost"] = experiment.metrics["cost"].model_copy(update={"label": "US$ or $x_1$"})
    data.frame.loc[0, ["cost", "loss"]] = 0.0, 5.0
    experiment.figures["points"].log.clear()

    svg = write_figure(tmp_path, data, "points", {"law": law})[1].read_text()

    assert "<!-- US$ or $x_1$ -->" in svg


def test_a_metric_to_be_beaten_is_a_line_across_the_figure(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    data.frame["cost"] = 3.0

    def svg() -> str:
        return write_figure(tmp_path, data, "points", {})[1].read_text()

    without = svg()
    data.experiment.figures["points"] = data.experiment.figures["points"].model_copy(update={"lines": ["cost"]})
    assert svg().count("<!-- cost -->") == without.count("<!-- cost -->") + 1  # in the legend
    assert svg().count("#777777") == without.count("#777777") + 2  # across, and in the legend


def test_levels_that_begin_with_a_word_are_one_line_with_that_label(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    figure = data.experiment.figures["points"]
    data.experiment.figures["points"] = figure.model_copy(update={"by": "size", "joined": "w"})

    svg = write_figure(tmp_path, data, "points", {})[1].read_text()

    assert "<!-- w -->" in svg
    assert "<!-- w1 -->" not in svg


def test_a_curve_of_one_point_is_a_marker(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    one_point = {cell: {name: points[:1] for name, points in own.items()} for cell, own in data.curves.items()}

    def markers(curves: Mapping[str, Mapping[str, Points]]) -> int:
        svg = write_figure(tmp_path, replace(data, curves=curves), "curves", {})[1].read_text()
        return len(re.findall('<use xlink:href="#m[^>]*style="fill: #0072b2; stroke', svg))

    assert markers(data.curves) == 0
    assert markers(one_point) == 2  # of the second level: in the figure and in the legend


def test_a_line_through_fewer_runs_than_planned_says_so(tmp_path: Path) -> None:
    def svg(name: str, lacking: list[int]) -> str:
        data = some_data(tmp_path, lacking)
        return write_figure(tmp_path, data, name, {"law": fit_of(data, "law")})[1].read_text()

    for name, lacking, said in (
        ("points", [0], ", 23 of 24 runs -->"),
        ("points", [0], "<!-- w1 (5 of 6 runs) -->"),
        ("points", list(range(6)), "<!-- w1 (0 of 6 runs) -->"),
        ("curves", [0], "<!-- w1, a (2 of 3 seeds) -->"),
        ("curves", [0, 1, 2], "<!-- w1, a (none of 3 seeds) -->"),
    ):
        assert said in svg(name, lacking)
        assert " of " not in "".join(re.findall("<!-- .* -->", svg(name, [])))


def test_a_run_that_a_logarithmic_axis_has_no_place_for_is_not_counted_as_shown(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    data.frame.loc[0, "loss"] = 0.0  # w1, a, seed 0

    svg = write_figure(tmp_path, data, "points", {})[1].read_text()

    assert re.findall(r"<!-- (w1.*?) -->", svg) == ["w1 (5 of 6 runs)"]
    data.frame["loss"] = 0.0
    assert write_figure(tmp_path, data, "points", {}) == []
    assert write_figure(tmp_path, some_data(tmp_path, lacking=range(24)), "curves", {}) == []


def test_levels_are_told_apart_by_line_marker_and_grey_and_more_than_colors_by_line_and_marker() -> None:
    grays = [
        0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in (to_rgb(look[0]) for look in LINE_STYLES)
    ]
    many = list(islice(_looks(), 7 * len(LINE_STYLES)))

    assert len({look[1] for look in LINE_STYLES}) == len({look[2] for look in LINE_STYLES}) == len(LINE_STYLES)
    assert len({round(gray, 2) for gray in grays}) == len(LINE_STYLES)
    assert tuple(many[: len(LINE_STYLES)]) == LINE_STYLES
    assert len({(color, line) for color, line, _ in many}) == len({(color, m) for color, _, m in many}) == len(many)
