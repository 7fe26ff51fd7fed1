"""`parrotflow compare`: two runs side by side, from what they recorded."""

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flows.experiments.record import append_run
from flows.results.compare import COMPARE_PAGE, differing_inputs, held_out_differences, panels_of, same_prompts
from flows.results.log import RUN_LOG, LoggedRun
from flows.results.recorded import Recorded
from flows.results.sides import open_sides
from stages.formats.evaluation.intervals import mean_difference
from stages.formats.evaluation.report import DOCUMENT_LOSSES
from stages.runtime.errors import UserError
from tests.flows.small_pipeline import dvc, environment
from tests.flows.toy import commit
from tests.small_project import PARROTFLOW, SECTIONS, make_repository, run_module, write_params


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository(tmp_path)
    monkeypatch.chdir(tmp_path)


def side(name: str, nats: list[float], rate: float = 1.0, corpus: str = "aa", first: str = "d0") -> Recorded:
    """A run with one stage that has trained and evaluated."""
    ids = [first, *(f"d{number}" for number in range(1, len(nats)))]
    frame = pd.DataFrame({"set": "validation", "model": "model", "id": ids, "bytes": 10, "tokens": 3, "nats": nats})
    table = io.BytesIO()
    frame.to_parquet(table)
    files = {str(DOCUMENT_LOSSES): table.getvalue()}
    for curve in ("training_loss", "validation_loss"):
        files[f"reports/curves/{curve}.tsv"] = f"step\t{curve}\n1\t3.0\n2\t{rate}\n".encode()
    sample = {"source": "s", "path": "p.py", "prompt": "def f(", "body": f"x{rate}):"}
    files["data/samples.json"] = json.dumps([sample]).encode()
    entry: dict[str, Any] = {
        "deps": [{"path": "corpus", "md5": corpus}],
        "params": {"params.yaml": {"train": {"optimizer": {"rate": rate}, "seed": 0}}},
        "outs": [{"path": path, "md5": ""} for path in files],
    }
    return Recorded(name, {"train": entry}, files.get)


NATS = np.linspace(5.0, 9.0, 20)


def test_the_interval_is_paired_over_the_documents_and_says_which_is_better() -> None:
    (found,) = held_out_differences(side("A", NATS.tolist()), side("B", (NATS - 0.5).tolist(), rate=2.0))

    expected, interval = mean_difference(NATS - 0.5, NATS, np.full(20, 10))
    assert (found["difference"], found["interval_95"]) == (expected, interval)
    assert found["interval_95"][1] < 0
    assert (found["verdict"], found["documents"]) == ("B is better", 20)
    assert found["b"] - found["a"] == pytest.approx(found["difference"], rel=1e-4)


def test_a_difference_that_chance_may_make_and_one_of_few_documents_are_undecided() -> None:
    alternating = NATS + np.resize([0.5, -0.5], 20)

    (same,) = held_out_differences(side("A", NATS.tolist()), side("B", alternating.tolist()))
    (few,) = held_out_differences(side("A", [1.0, 2.0]), side("B", [0.5, 1.0]))

    assert same["verdict"] == "undecided"
    assert (few["interval_95"], few["verdict"]) == (None, "undecided")


def test_other_held_out_documents_are_refused_and_so_are_losses_that_are_not_here() -> None:
    with pytest.raises(UserError, match=r"A and B were evaluated on different documents \(2 and 2, 1 in common\)"):
        [*held_out_differences(side("A", [1.0, 2.0]), side("B", [1.0, 2.0], first="other"))]
    with pytest.raises(UserError, match="B: the losses of its held-out documents are not in this project's cache"):
        [*held_out_differences(side("A", [1.0, 2.0]), Recorded("B", {}))]


def test_parameters_and_data_that_differ_are_named_with_both_values() -> None:
    one, other = side("A", [1.0]), side("B", [1.0], rate=2.0, corpus="bb")

    assert [*differing_inputs(one, other)] == [("train.optimizer.rate", "1.0", "2.0"), ("corpus", "aa", "bb")]
    assert [*differing_inputs(one, side("B", [1.0]))] == []


def test_curves_of_both_are_in_the_same_picture_and_prompts_that_both_completed_side_by_side() -> None:
    one, other = side("A", [1.0]), side("B", [1.0], rate=2.0)

    (loss,) = panels_of(one, other)
    assert loss.curves["A training"] == [(1.0, 3.0), (2.0, 1.0)]
    assert sorted(loss.curves) == ["A held out", "A training", "B held out", "B training"]
    (sample,) = same_prompts(one, other)
    assert sample == {"from": "s p.py", "prompt": "def f(", "a": "x1.0):", "b": "x2.0):"}


def test_samples_of_an_earlier_model_are_not_shown_under_the_name_of_a_later_one() -> None:
    later = side("B", [1.0], rate=2.0)
    (entry,) = later.stages.values()
    sampled = [out for out in entry["outs"] if out["path"] == "data/samples.json"]
    entry["outs"] = [*(out for out in entry["outs"] if out not in sampled), {"path": "model", "md5": "new"}]
    later.stages["generate"] = {"deps": [{"path": "model", "md5": "old"}], "outs": sampled}

    assert [*same_prompts(side("A", [1.0]), later)] == []


def test_what_is_neither_a_run_nor_a_revision_is_refused() -> None:
    with pytest.raises(UserError, match=r"^nonesuch: not found: it is no run"):
        open_sides("nonesuch", "workspace")


def test_runs_that_were_not_evaluated_are_named_together_with_what_to_do() -> None:
    append_run(RUN_LOG, LoggedRun(name="1", began="2026-01-02T03:04:05+00:00", changes=[], commit="", state="stopped"))

    with pytest.raises(UserError, match=r"^run 1 and workspace: not evaluated: choose runs"):
        open_sides("1", "workspace")


def test_two_commits_and_a_run_of_the_log_are_compared_without_computing_and_the_page_needs_no_network(
    up_to_date: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    shutil.copytree(up_to_date, folder, symlinks=True)
    commit(folder)
    write_params(folder, *SECTIONS, train__max_steps=4, publish__gate__allow_worse=True)
    dvc(folder, "repro", "evaluate", "generate")
    commit(folder)

    def said_of(*arguments: str) -> str:
        done = run_module(PARROTFLOW, ["compare", *arguments], folder, environment(folder))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def compared(*arguments: str) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(said_of(*arguments, "--json").splitlines()[-1])
        return facts

    found = compared("HEAD~1", "HEAD")
    assert found["changed"] == [{"what": "train.max_steps", "a": "6", "b": "4"}]
    assert found["held_out"][0]["documents"] > 10
    assert {"what": "steps", "a": 6, "b": 4} in found["figures"]
    assert compared("HEAD~1")["held_out"] == found["held_out"], "the workspace is as HEAD"
    revision = next((folder / "published/tiny/revisions").iterdir()).name
    assert compared(revision[:8])["held_out"] == found["held_out"]

    said = said_of("HEAD~1")
    page = (folder / COMPARE_PAGE).read_text(encoding="utf-8")
    assert "train.max_steps" in said
    assert page.count("<svg ") == 2
    assert len(page) < 1_000_000
    assert re.findall(r"<(?:script|link|img|iframe)|(?:src|href)=\"(?!#)|url\((?!#)", page) == []
