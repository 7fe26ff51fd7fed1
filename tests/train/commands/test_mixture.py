"""A mixture that the data cannot give is refused before anything runs, where the data is there already."""

from pathlib import Path

import pytest

from stages.runtime.entry import UserError
from stages.runtime.section import read_section
from stages.train.commands.mixture import lines
from stages.train.params import TrainParams
from tests.train.small_run import write_params, write_project

MIXTURE = {"weights": {"web": 0.5, "books": 0.5}, "weighting": "shares", "max_repetition": 4, "phases": []}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its store has 40 documents of web and 20 of books."""
    write_project(tmp_path, lambda number: "books" if number % 3 == 0 else "web")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARROTFLOW_STAGES_TO_DO", raising=False)
    return tmp_path


def said(project: Path, max_steps: int) -> list[str]:
    write_params(project, mixture=MIXTURE, max_steps=max_steps)
    return list(lines(read_section("train", TrainParams)))


def test_a_source_that_would_be_read_too_often_is_refused_with_the_numbers(project: Path) -> None:
    with pytest.raises(UserError, match=r"train.mixture: `books` has .*5,000 steps ask for .* repetitions"):
        said(project, 5000)


def test_what_can_be_given_is_said_as_training_says_it(project: Path) -> None:
    assert [line.split(":")[1] for line in said(project, 4)] == [" books", " web"]


@pytest.mark.parametrize("to_do", ["code tokenize train", None])
def test_of_data_that_is_still_to_be_made_nothing_is_known(
    project: Path, monkeypatch: pytest.MonkeyPatch, to_do: str | None
) -> None:
    if to_do:
        monkeypatch.setenv("PARROTFLOW_STAGES_TO_DO", to_do)
    else:
        (project / "data/tokens/train/manifest.json").unlink()

    assert said(project, 5000) == ["mixture: not known before `tokenize` has run"]
