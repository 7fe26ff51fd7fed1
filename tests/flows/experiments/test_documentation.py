"""What docs/experiments.md shows is what the shipped files say and the commands print."""

import re
from pathlib import Path

import pytest

from flows.experiments.cells import cells_of, queue_command
from flows.experiments.experiment import read_experiment
from stages.runtime.section import read_params_file
from tests.small_project import ROOT

PAGE = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_yaml_that_is_shown_is_in_a_shipped_file() -> None:
    files = ("experiments/optimizers.yaml", "searches/learning_rates.yaml")
    shipped = [(ROOT / file).read_text(encoding="utf-8") for file in files]
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

    assert [sum(block in text for block in blocks) for text in shipped] == [2, 1]
    assert len(blocks) == 3


def test_the_command_that_is_shown_is_one_that_is_printed() -> None:
    experiment, values = read_experiment("optimizers"), read_params_file()
    printed = [queue_command(cell, experiment.targets, values) for cell in cells_of("optimizers", experiment, "small")]

    (shown,) = re.findall(r"^dvc exp run --queue .*", PAGE, re.MULTILINE)
    assert shown in printed


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(ROOT / "experiments").glob("*.yaml")))
def test_the_table_of_experiments_says_how_many_runs_and_minutes_each_is(name: str) -> None:
    experiment = read_experiment(name)
    count, minutes = len(cells_of(name, experiment, "small")), experiment.settings.small.minutes

    (line,) = re.findall(rf"^\| \[{name}\].*", PAGE, re.MULTILINE)
    assert experiment.question in line
    assert re.search(rf"{count} runs\b.*, {minutes:g} minutes", line)
