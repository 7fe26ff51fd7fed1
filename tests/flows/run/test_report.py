"""What a run shows of its stages: metrics, its page, curves."""

import base64
import io
import re
from pathlib import Path

import pytest
from PIL import Image

from flows.plan.graph import Plan, PlannedStage
from flows.plan.settings import CurveFigure, Policy
from flows.run.outcome import StageOutcome
from flows.run.report import filled_in, outcome_page, panel_of, shown_metrics


def test_a_page_says_what_ran_and_shows_its_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loss.tsv").write_text("step\tloss\n0\t3.0\n10\t1.0\n")
    curves = [{"title": "loss", "series": {"training": "loss.tsv:loss", "held out": "none.tsv:loss"}}]
    policy = Policy.model_validate({"show": {"curves": curves}})
    plan, outcomes = Plan((PlannedStage("train", "run", (), (), policy),)), {"train": StageOutcome("train", "ran")}

    page = outcome_page(plan, outcomes)
    assert "| train | ran |" in page
    assert panel_of(policy.show.curves[0]).curves == {"training": [(0.0, 3.0), (10.0, 1.0)]}
    (picture,) = re.findall(r"!\[Curves of train\]\(data:image/png;base64,(.*)\)", page)
    assert Image.open(io.BytesIO(base64.b64decode(picture))).size[0] > 100
    assert "Curves" not in outcome_page(plan, {"train": StageOutcome("train", "failed")})


def test_a_single_point_is_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "loss.tsv").write_text("step\tloss\n10\t3.0\n")
    figure = CurveFigure.model_validate({"title": "loss", "series": {"": f"{tmp_path}/loss.tsv:loss"}})

    assert panel_of(figure).curves == {}


def test_a_star_stands_for_every_curve_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "by_source.tsv").write_text("step\tdocs\tcode\n0\t3.0\t2.0\n9\t2.5\t\n")
    figure = CurveFigure.model_validate({"title": "by source", "series": {"": f"{tmp_path}/by_source.tsv:*"}})

    assert panel_of(figure).curves == {"docs": [(0.0, 3.0), (9.0, 2.5)], "code": [(0.0, 2.0)]}


def test_a_report_that_is_no_json_and_a_value_that_is_no_number_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text("{")
    Path("good.json").write_text('{"loss": 1.5, "name": "a"}')
    Path("measured.json").write_text('{"bits": 2.5, "interval_95": {"bits": [2.0, 3.0]}}')
    metrics = {"bad": "bad.json:loss", "loss": "good.json:loss", "name": "good.json:name", "bits": "measured.json:bits"}
    policy = Policy.model_validate({"show": {"metrics": metrics}})

    found = shown_metrics([PlannedStage("train", "up to date", (), (), policy)])
    assert found == {"bits": (2.5, [2.0, 3.0]), "loss": (1.5, None)}
    assert [*found] == ["bits", "loss"]
    assert filled_in("{good.json:loss} {bad.json:loss}") == ""
