"""What docs/how-to/experiments.md shows is what the shipped files say and the commands print."""

import re
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path

import pytest

from flows.experiments.cells import cells_of, read_experiment
from flows.experiments.results import compute, write_experiment_results
from tests.small_project import ROOT

PAGE = (ROOT / "docs/how-to/experiments.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_yaml_that_is_shown_is_in_a_shipped_file() -> None:
    shipped = (ROOT / "experiments/optimizers.yaml").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

    assert sum(block in shipped for block in blocks) == 2
    assert len(blocks) == 3  # the other one draws levels


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(ROOT / "experiments").glob("*.yaml")))
def test_the_table_of_experiments_says_how_many_runs_each_has(name: str) -> None:
    experiment = read_experiment(name)
    count = len(cells_of(name, experiment))

    (line,) = re.findall(rf"^\| \[{name}\].*", PAGE, re.MULTILINE)
    assert experiment.question in line
    assert re.search(rf"\| {count} runs, \d+ minutes", line)


@pytest.mark.parametrize("folder", sorted(path.parent for path in Path(ROOT / "experiments").glob("*/runs.csv")))
def test_making_the_stored_results_again_changes_no_number(folder: Path, tmp_path: Path) -> None:
    """Figures are left out: their last digits follow the processor's."""
    results = compute(folder.name)
    shutil.copytree("experiments", tmp_path / "experiments")

    with chdir(tmp_path):
        write_experiment_results(folder.name, results)

    for file in (path for path in folder.rglob("*.*") if path.parent.name != "figures" and path.name != "valley.json"):
        assert (tmp_path / file.relative_to(ROOT)).read_bytes() == file.read_bytes(), file


def test_the_latex_document_that_is_shown_reads_files_that_there_are(tmp_path: Path) -> None:
    (document,) = re.findall(r"```latex\n(.*?)```", PAGE, re.DOTALL)
    files = re.findall(r"\\(input|includegraphics)\{(.*?)\}", document)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    (tmp_path / "paper.tex").write_text(document, encoding="utf-8")

    assert [command for command, _ in files] == ["input", "includegraphics"]
    assert all((ROOT / (file if Path(file).suffix else f"{file}.tex")).is_file() for _, file in files)
    if not shutil.which("pdflatex"):
        pytest.skip("pdflatex is not installed")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    for _ in range(2):  # the second time with the references of the first
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    assert "undefined" not in done.stdout
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")
