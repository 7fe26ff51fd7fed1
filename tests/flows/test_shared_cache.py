"""A clone that shares DVC's cache with another one computes nothing that was computed there."""

import json
import re
from pathlib import Path

from tests.flows.small_pipeline import STAGES, dvc, environment, git, outs
from tests.forked import PARROTFLOW, run_forked

WITHOUT_PUBLISH = [stage for stage in STAGES if stage != "publish"]


def test_in_a_clone_that_shares_the_cache_run_and_repro_restore_every_stage_but_publish(
    up_to_date: Path, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(up_to_date), str(clone))
    dvc(clone, "cache", "dir", "--local", str(up_to_date / ".dvc/cache"))

    ran = run_forked(PARROTFLOW, ["run", "clean"], clone, environment(clone, HOME=str(tmp_path))).stdout
    reproduced = dvc(clone, "repro", *WITHOUT_PUBLISH)

    by_run = [stage for stage in ("code", "collect", "clean") if f"{stage} │ restored" in ran]
    by_repro = [line.split("'")[1] for line in reproduced.splitlines() if "is cached - skipping run" in line]
    assert by_run == ["code", "collect", "clean"], ran
    assert sorted(by_run + by_repro) == sorted(WITHOUT_PUBLISH), reproduced
    assert outs(clone).items() < outs(up_to_date).items()
    shown = json.loads(dvc(clone, "plots", "show", "--json"))
    assert "errors" not in shown
    reports = [path for path in shown["data"] if path.endswith(".json")]
    assert {"reports/clean.json", "reports/evaluate.json", "reports/evaluate_receipt.json"} < {*reports}
    assert all(shown["data"][report] == [] for report in reports), "DVC draws nothing of a report"


def test_in_a_hundred_columns_dvc_shows_by_which_numbers_runs_are_compared(up_to_date: Path) -> None:
    table = dvc(up_to_date, "exp", "show").splitlines()

    assert re.split(r" {2,}", table[1][:100].strip())[:6] == [
        *("Experiment", "Created"),
        *("bits_per_byte", "loss", "perplexity", "parsed"),
    ]
