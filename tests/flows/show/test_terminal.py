"""What stands under a run: the figures of the results that lie here."""

import json
from pathlib import Path

import pytest

from flows.show.terminal import read_metrics


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports").mkdir()
    return tmp_path


def test_metrics_are_read_from_the_reports_and_missing_ones_left_out(project: Path) -> None:
    evaluation = {"bits_per_byte": 1.5, "baselines_bits_per_byte": {"gzip_9": 1.9}}
    (project / "reports/evaluate.json").write_text(json.dumps(evaluation))

    assert read_metrics() == {"bits per byte": 1.5, "of gzip -9": 1.9}


@pytest.mark.parametrize(("speed", "shown"), [(1200.5, {"tokens per second": 1200.5}), (0.0, {})])
def test_a_launch_that_had_nothing_left_to_train_shows_no_speed(
    project: Path, speed: float, shown: dict[str, float]
) -> None:
    (project / "reports/train_speed.json").write_text(json.dumps({"tokens_per_second": speed}))

    assert read_metrics() == shown
