"""Traces of chosen steps and the speed by step: side outputs, which change no result."""

import gzip
import json
from pathlib import Path

import pytest

from stages.formats.model_folder import weights_sha256
from stages.runtime.entry import UserError
from stages.train.monitoring.profile import PROFILE, profiled_steps
from tests.train.small_run import copy_of, run_workers, write_project


def test_the_named_steps_are_in_a_trace_of_each_process_and_the_results_are_those_of_any_run(tmp_path: Path) -> None:
    plain = write_project(tmp_path / "plain", max_steps=4)
    project = copy_of(plain, tmp_path / "profiled")
    run_workers(plain, 2)
    run_workers(project, 2, **{PROFILE: "2-3"})

    assert weights_sha256(project / "model") == weights_sha256(plain / "model")
    for curve in sorted((plain / "reports/curves").iterdir()):
        assert (project / "reports/curves" / curve.name).read_bytes() == curve.read_bytes()
    traces = sorted(project.glob(".parrotflow/checkpoints/*/profile/*"))
    assert [path.name for path in traces] == ["steps-2-3-rank0.json.gz", "steps-2-3-rank1.json.gz"]
    for path in traces:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        names = {event.get("name", "") for event in events}
        assert {"step 2", "step 3", "aten::addmm"} <= names
        assert not {"step 1", "step 4"} & names


def test_each_point_of_the_curves_has_its_speed_in_a_file_that_no_stage_owns(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", max_steps=4)
    run_workers(project, 1)
    (curve,) = project.glob(".parrotflow/checkpoints/*/speed.tsv")
    header, *lines = [line.split("\t") for line in curve.read_text().splitlines()]
    points = [dict(zip(header, line, strict=True)) for line in lines]
    assert [point["step"] for point in points] == ["1", "2", "3", "4"]
    for point in points:
        assert float(point["tokens_per_second"]) > 0
        assert 0 <= float(point["data_wait"]) <= 1
        assert int(point["memory_bytes"]) > 1e6
        assert point["model_flops_utilisation"] == ""  # the peak of a CPU is not known


@pytest.mark.parametrize(
    ("asked", "steps"), [("", range(0)), ("10-12", range(9, 12)), ("10", range(9, 10)), ("1-1", range(1))]
)
def test_steps_are_named_as_in_the_curves(monkeypatch: pytest.MonkeyPatch, asked: str, steps: range) -> None:
    monkeypatch.setenv(PROFILE, asked)
    assert profiled_steps() == steps


@pytest.mark.parametrize("asked", ["0-3", "12-10", "ten", "10-"])
def test_what_names_no_steps_is_refused(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv(PROFILE, asked)
    with pytest.raises(UserError, match=f"{PROFILE}={asked}: expected steps, from 1, such as 10 or 10-12"):
        profiled_steps()
