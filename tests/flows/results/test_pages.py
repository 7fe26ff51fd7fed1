"""`report.html`: the page of a run, also while it trains."""

import json
import re
from pathlib import Path

import pytest

from flows.plan.changes import Reason
from flows.plan.graph import Plan, PlannedStage
from flows.plan.settings import Policy
from flows.results.log import LoggedRun
from flows.results.pages import REPORT_PAGE, RunPage, shaded_samples
from flows.run.outcome import StageOutcome
from flows.run.terminal import Terminal

POLICY = Policy.model_validate(
    {
        "show": {
            "metrics": {"bits per byte": "reports/evaluate.json:bits_per_byte"},
            "curves": [{"title": "loss", "series": {"training": "reports/curves/training_loss.tsv:training_loss"}}],
            "pages": {"What it writes": "data/samples.html"},
        }
    }
)
RUN = LoggedRun(name="7", began="2026-01-02T03:04:05+00:00", changes=["train.rate 1 → 2"], commit="abc", note="<b>")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPage:
    monkeypatch.chdir(tmp_path)
    plan = Plan((PlannedStage("train", "run", (Reason("asked", "train"),), (), POLICY, 40.0),))
    return RunPage(plan, RUN, ["time: about 40 s"], Terminal([]))


def add_point(folder: str, name: str, step: int, value: float) -> None:
    path = Path(folder, f"{name}.tsv")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text() if path.exists() else f"step\t{name}\n"
    path.write_text(f"{text}{step}\t{value}\n")


def write_results(bits: float) -> None:
    for folder in ("reports", "data"):
        Path(folder).mkdir(exist_ok=True)
    report = {"bits_per_byte": bits, "interval_95": {"bits_per_byte": [bits - 0.1, bits + 0.1]}}
    Path("reports/evaluate.json").write_text(json.dumps(report))
    shaded = "<style>\n.s1 { color: red }\n</style>\n<section>\n<pre>a text</pre></section>\n"
    Path("data/samples.html").write_text(shaded)


def written(page: RunPage) -> str:
    page.write()
    text = REPORT_PAGE.read_text(encoding="utf-8")
    addresses = re.findall(r"(?:src|href|url)[=(]\"?([^\"#)> ]+)", text)
    assert [one for one in addresses if one != "data/samples.html"] == [], "nothing is loaded from elsewhere"
    return text


def test_a_running_page_shows_live_curves_and_no_result_of_an_earlier_run(page: RunPage) -> None:
    write_results(bits=1.5)
    add_point("reports/curves", "training_loss", 1, 9.0)
    assert "No result yet." in written(page)

    add_point(".parrotflow/checkpoints/f/curves", "training_loss", 1, 4.0)
    add_point(".parrotflow/checkpoints/f/curves", "training_loss", 2, 3.0)

    text = written(page)
    assert text.count("<svg ") == 1
    assert "class=result" not in text
    assert "time: about 40 s" in text
    assert "train.rate 1 → 2; &#34;&lt;b&gt;&#34;" in text
    assert page.sparkline(page.plan.stages[0]) == "", "two points have no shape"
    add_point(".parrotflow/checkpoints/f/curves", "training_loss", 3, 2.0)
    assert page.sparkline(page.plan.stages[0]) == "█▄▁"


def test_the_page_says_how_far_a_stage_at_work_is(page: RunPage) -> None:
    assert "<td>not started</td>" in written(page)
    page.terminal.started("train", 1)
    assert "<td>running</td>" in written(page)
    page.terminal.progress["train"] = "step 10/40"
    assert "<p>train: step 10/40</p>" in written(page)
    assert "running, as of 20" in written(page)
    page.terminal.ended(StageOutcome("train", "stopped"))
    assert "step 10/40" not in written(page)


def test_the_page_is_renewed_the_less_often_the_longer_that_takes(page: RunPage) -> None:
    assert page.is_outdated
    page.write()
    page._took = 1e9
    assert not page.is_outdated, "the training goes first"


def test_the_page_of_a_finished_run_begins_with_its_result_and_links_to_its_pages(page: RunPage) -> None:
    write_results(bits=1.25)
    add_point("reports/curves", "training_loss", 1, 4.0)
    page.outcomes["train"] = StageOutcome("train", "ran", 41.0)
    page.run = RUN.model_copy(update={"state": "finished", "seconds": 42.0})

    text = written(page)

    assert "1.25 <small>bits per byte, 95 % interval 1.15 to 1.35" in text
    assert '<a href="data/samples.html">What it writes</a>' in text
    assert "<pre>a text</pre>" in text
    assert ".s1 { color: red }" in text
    assert "http-equiv=refresh" not in text


def test_the_best_samples_are_those_that_are_complete_and_parse_and_not_too_long() -> None:
    texts = ["cut off", "complete, parses", "complete, parses" + "x" * 30_000]
    page = "".join(f"<section>{text}</section>" for text in texts)

    _, found = shaded_samples(page)

    assert found == ["<section>complete, parses</section>", "<section>cut off</section>"]
