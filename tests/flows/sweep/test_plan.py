"""The plan of all cells."""

from pathlib import Path

from flows.sweep.plan import plan_of_all
from tests.flows.sweep.toy_sweep import DVC_YAML, make_sweep


def test_the_plan_of_all_cells_knows_the_secrets_of_stages_that_no_cell_runs(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "toy", DVC_YAML + "    meta: {flow: {secrets: [PASSPHRASE]}}\n")

    plan = plan_of_all({"0123abcd": folder}, ["collect"])

    assert [stage.name for stage in plan] == ["0123abcd/collect"]
    assert plan.secrets == {"PASSPHRASE"}
