"""Which cells run, and what becomes of those that have no result."""

from pathlib import Path

import pytest
import yaml

from flows.experiments.cells import Cell
from flows.experiments.runs import Batch, Run, append_run
from flows.sweep.clone import CLONES
from flows.sweep.plan import standings
from flows.sweep.run_cells import run_cells
from tests.flows.sweep.toy_sweep import DVC_YAML, commit, git, make_sweep

CELL = Cell("0123abcd", "toy-a-0123abcd", {"recipe": "a"}, 0, {"model.name": "a"})
RECORD = Path("runs.jsonl")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One in which a stage has a value of params.yaml in its command, and one of another file."""
    templated = DVC_YAML.replace("cat source.txt source.txt", "echo ${model.width} ${host.name}")
    folder = make_sweep(tmp_path / "toy", "vars: [machine.yaml]\n" + templated)
    (folder / "machine.yaml").write_text("host: {name: h}\n")
    commit(folder)
    monkeypatch.chdir(folder)
    return folder


def values() -> dict[str, dict[str, object]]:
    read: dict[str, dict[str, object]] = yaml.safe_load(Path("params.yaml").read_text())
    return read


def recorded(folder: Path) -> None:
    """A finished run of the cell from HEAD."""
    run = Run(
        cell=CELL.id,
        state="finished",
        experiment=CELL.name,
        commit="",
        baseline=git(folder, "rev-parse", "HEAD").strip(),
        params=CELL.params(values()),
        reports={},
        curves={},
        ended="2026-01-01T00:00:00",
    )
    append_run(RECORD, run)


def reason_to_run(target: str, *wanted: str) -> str:
    """Why the cell would run, of which these reports and curves are wanted."""
    batch = Batch("toy", [CELL], [target], wanted, (), RECORD)
    return standings(batch)[CELL.id].reason


def test_what_a_kill_left_between_a_record_and_the_end_of_its_clone_goes_with_the_next_cells(project: Path) -> None:
    recorded(project)
    for name in (CELL.id, f".{CELL.id}.partial", "failed"):
        (CLONES / name).mkdir(parents=True)

    assert run_cells(Batch("sweep", [], ["collect"], (), (), RECORD)) == []

    assert [path.name for path in CLONES.iterdir()] == ["failed"]


def test_a_cell_runs_again_where_a_value_in_a_template_has_changed(project: Path) -> None:
    recorded(project)
    assert reason_to_run("collect") == ""

    changed = values()
    changed["model"]["width"] = 9
    (project / "params.yaml").write_text(yaml.safe_dump(changed))
    assert reason_to_run("collect") == "model.width changed since"

    git(project, "checkout", "-q", "params.yaml")
    (project / "machine.yaml").write_text("host: {name: other}\n")
    commit(project)
    assert reason_to_run("collect") == "machine.yaml changed since"


def test_a_cell_runs_again_for_a_report_that_it_was_not_asked_for_before(project: Path) -> None:
    assert reason_to_run("train", "scores.json") == "not run yet"
    recorded(project)

    assert reason_to_run("train") == ""
    assert reason_to_run("train", "scores.json", "curve.tsv:loss") == "has no curve.tsv:loss, scores.json yet"
