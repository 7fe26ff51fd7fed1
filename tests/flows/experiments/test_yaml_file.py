"""The experiment to begin with runs as it is: its keys, params and reports are those that there are."""

import shutil
from pathlib import Path

import pytest

from flows.experiments.cells import cells_of, read_experiment
from tests.small_project import ROOT


def test_the_experiment_to_copy_is_read_and_its_cells_change_params_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("params.yaml", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "experiments").mkdir()
    shutil.copyfile(ROOT / "conf/new_experiment.yaml", tmp_path / "experiments/rates.yaml")
    monkeypatch.chdir(tmp_path)

    assert len({cell.id for cell in cells_of("rates", read_experiment("rates"))}) == 6
