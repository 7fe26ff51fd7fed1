import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.card.__main__ import main as card
from stages.evaluate.__main__ import main as evaluate
from stages.evaluate.generate.__main__ import main as generate
from stages.evaluate.harness.__main__ import main as harness
from stages.evaluate.score.__main__ import main as score
from stages.yardstick.__main__ import main as yardstick
from tests.fake_hub import Hub
from tests.publish.publishing import record, write_pipeline
from tests.publish.repository import commit_all
from tests.trained_project import write_trained_project


@pytest.fixture(scope="session")
def evaluated_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated")
    write_trained_project(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        evaluate()
        yardstick()
        generate()
        score()
        harness()
        card()
        write_pipeline()
        (folder / "data/other").mkdir()
        (folder / ".dvc").mkdir()
        (folder / ".dvc/config").touch()
        (folder / ".gitignore").write_text(
            "/data/\n/model/\n/published/\n/reports/\n/corpus/\n.parrotflow/\n.dvc/tmp\n"
        )
        commit_all()
        record()
    return folder


@pytest.fixture
def project(evaluated_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An evaluated project of one's own, which is the current folder."""
    folder = tmp_path / "project"
    shutil.copytree(evaluated_template, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as running:
        yield running
