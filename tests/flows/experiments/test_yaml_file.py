"""What `--new` writes runs as it is: its keys, params and reports are those that there are."""

from pathlib import Path

import pytest

from flows.cli import app
from flows.experiments.cells import cells_of
from flows.experiments.experiment import read_experiment
from flows.search.search_file import read_search
from stages.runtime.entry import UserError
from tests.small_project import ROOT


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("params.yaml", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_experiment_is_read_and_its_cells_change_params_that_exist() -> None:
    app(["sweep", "rates", "--new"], result_action="return_value")

    experiment = read_experiment("rates")

    for size in ("small", "full"):
        cells = cells_of("rates", experiment, size)
        assert len({cell.id for cell in cells}) == 6
    assert "parrotflow sweep rates --dry" in Path("experiments/rates.yaml").read_text()


def test_a_new_search_is_read() -> None:
    app(["search", "rates", "--new"], result_action="return_value")

    search = read_search("rates")

    assert (search.sampler, search.budget.runs, search.seed) == ("tpe", 8, 0)
    assert search.stop_early is not None
    assert (search.stop_early.steps, search.stop_early.worse_than) == ("train.max_steps", "median")


@pytest.mark.parametrize("command", ["sweep", "search"])
def test_a_file_that_is_there_is_kept(command: str) -> None:
    app([command, "mine", "--new"], result_action="return_value")

    with pytest.raises(UserError, match=r"mine\.yaml is there already"):
        app([command, "mine", "--new"], result_action="return_value")
