"""What `--new` writes runs as it is: its keys, params and reports are those that there are."""

from pathlib import Path

import pytest

from flows.cli import app
from flows.experiments.cells import cells_of, read_experiment
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

    assert len({cell.id for cell in cells_of("rates", experiment)}) == 6
    assert "parrotflow sweep rates --dry" in Path("experiments/rates.yaml").read_text()


def test_a_file_that_exists_is_kept() -> None:
    app(["sweep", "mine", "--new"], result_action="return_value")

    with pytest.raises(UserError, match=r"mine\.yaml exists already"):
        app(["sweep", "mine", "--new"], result_action="return_value")
