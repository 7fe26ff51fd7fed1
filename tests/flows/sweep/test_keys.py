"""Which cells run: those whose content keys are not those of their last run."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from flows.experiments.cells import Cell
from flows.experiments.record import append_run
from flows.run.outcome import StageOutcome
from flows.sweep import clone
from flows.sweep.jobs import Batch
from flows.sweep.keys import (
    PLANNING,
    TargetFacts,
    cell_statuses,
    facts_of_targets,
    keys_of_cells,
    require_same,
    source_hashes,
)
from flows.sweep.local import OnThisMachine
from stages.runtime.errors import UserError
from stages.runtime.stage_code import FOLDER, StageCode
from tests.flows.sweep.toy_sweep import DVC_YAML, make_sweep
from tests.flows.toy import commit, dvc, git

CELL = Cell("0123abcd", "toy-a-0123abcd", {"recipe": "a"}, 0, {"model.name": "a"})
RECORD = Path("runs.jsonl")

TEMPLATED = DVC_YAML.replace("cat source.txt source.txt", "echo ${model.width} ${host.name}").replace(
    "deps: [train.py,", "deps: [train.py, data/code/make.json,"
)
CODE = "  code: {cmd: python -m stages.code, deps: [requirements.lock, stages], outs: [data/code]}\n"
OWN, OTHER, RUNS_IT = Path("stages/make/own.py"), Path("stages/other/__main__.py"), Path("stages/runtime/started.py")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with values of params.yaml and of another file in a command, and a stage that depends on code."""
    folder = make_sweep(tmp_path / "toy", "vars: [machine.yaml]\n" + TEMPLATED + CODE)
    (folder / "machine.yaml").write_text("host: {name: h}\n")
    for module in (OWN, OWN.with_name("__main__.py"), OTHER, RUNS_IT):
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        (folder / module).write_text(
            "import stages.make.own, stages.runtime.started\n" if module.stem == "__main__" else "import numpy\n"
        )
    (folder / "requirements.lock").write_text("numpy==1.0\nrich==1.0\n")
    (folder / ".gitignore").write_text("/.parrotflow/\n/data/\n")
    commit(folder)
    monkeypatch.chdir(folder)
    return folder


def test_code_that_the_last_commit_does_not_have_is_named_by_its_file(project: Path) -> None:
    head = clone.head_commit()
    OWN.write_text("import rich\n")

    with pytest.raises(UserError, match=rf"^{OWN}: differs from the last commit.*`git add -f {OWN}`"):
        keys_of_cells([CELL], ["train"], head)


def test_a_cell_may_have_other_packages_as_its_corpus(project: Path) -> None:
    file, there = FOLDER / "collect.json", StageCode({"stages/a.py": "1"}, {"rich": "1"}, "x")

    def compare(here: StageCode) -> None:
        for folder, code in ((Path(), here), (PLANNING, there)):
            (folder / FOLDER).mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(code.text)
        require_same({str(file): "here"}, {str(file): "there"})

    compare(replace(there, libraries={"numpy": "1"}))
    with pytest.raises(UserError, match=r"^stages/a.py: differs from the last commit"):
        compare(replace(there, files={"stages/a.py": "2"}))


def keys(*targets: str) -> dict[str, str]:
    """The keys of the cell's stages at HEAD."""
    return keys_of_cells([CELL], targets, clone.head_commit())[CELL.id]


def changed_by(project: Path, file: str | Path, text: str) -> set[str]:
    """The stages whose keys change with this file, once it is committed."""
    before = keys("train")
    Path(file).write_text(text)
    commit(project)
    after = keys("train")
    assert list(after) == ["collect", "tokenize", "train"]
    return {stage for stage in after if after[stage] != before[stage]}


def test_a_key_changes_with_all_that_a_result_follows_from_and_with_nothing_else(project: Path) -> None:
    values = yaml.safe_load(Path("params.yaml").read_text())
    every, later = {"collect", "tokenize", "train"}, {"tokenize", "train"}
    pipeline = Path("dvc.yaml").read_text()

    assert changed_by(project, "params.yaml", yaml.safe_dump(values | {"more": 1})) == set()
    assert changed_by(project, "params.yaml", yaml.safe_dump(values | {"other": {"rate": 0.1}})) == later
    assert changed_by(project, "machine.yaml", "host: {name: other}\n") == every
    assert changed_by(project, "dvc.yaml", pipeline.replace("wc -c", "wc -m")) == later
    assert changed_by(project, "train.py", "print()\n") == {"train"}
    assert changed_by(project, "source.txt", "new\n") == every
    assert changed_by(project, OWN, "import numpy  # a comment\n") == set()
    assert changed_by(project, OTHER, "X = 1\n") == set()
    assert changed_by(project, RUNS_IT, "import numpy\nX = 1\n") == set()
    assert changed_by(project, OWN, "import numpy\nX = 1\n") == {"train"}
    assert changed_by(project, "requirements.lock", "numpy==1.0\nrich==2.0\n") == set()
    assert changed_by(project, "requirements.lock", "numpy==2.0\nrich==2.0\n") == {"train"}


def test_a_run_is_current_if_its_keys_are_and_it_has_the_wanted_reports(project: Path) -> None:
    facts = TargetFacts({"model"}, set(), 0, 0.0)
    batch = Batch("toy", [CELL], ["train"], ["scores.json"], (), facts, {"model": {}, "unread": {}}, RECORD)
    made = keys("train")

    def reason(now: dict[str, str]) -> str:
        return cell_statuses(batch, {CELL.id: now})[CELL.id].reason

    assert reason(made) == "not run yet"
    sweep = OnThisMachine(batch, "head", {CELL.id: made}, {}, {}, [])
    sweep.recorded(sweep.jobs[-1], StageOutcome("a", "failed", message="no luck"))
    run = sweep.runs[CELL.id]
    assert run.params == {"model": {"name": "a"}}
    assert (reason(made), cell_statuses(batch, {CELL.id: made})[CELL.id].failed) == ("failed: no luck", True)
    assert reason(made | {"tokenize": "other"}) == "tokenize has changed since its last run"
    append_run(RECORD, run.model_copy(update={"state": "finished"}))
    assert reason(made) == "scores.json missing"
    append_run(RECORD, run.model_copy(update={"state": "finished", "reports": {"scores.json": {}}}))
    assert reason(made) == ""


def test_a_clone_that_lacks_what_the_cells_read_is_refused_with_the_remedy(project: Path) -> None:
    Path("dvc.yaml").write_text(Path("dvc.yaml").read_text().replace("deps: [source.txt]", "deps: [corpus]"))
    Path("corpus").mkdir()
    Path("corpus/.gitignore").write_text("*\n!.gitignore\n")
    Path("corpus/mine.txt").write_text("mine\n")
    commit(project)

    with pytest.raises(UserError, match=r"^corpus: differs from the last commit.*`git add -f corpus`"):
        keys("train")

    git(project, "add", "-f", "corpus")
    commit(project)
    assert keys("train")
    Path("stages/make/new.py").write_text("X = 1\n")
    OWN.write_text("import stages.make.new\n")
    git(project, "commit", "-qam", "a change")
    with pytest.raises(UserError, match=r"^stages/make/new\.py: differs from the last commit"):
        keys("train")


def test_data_that_dvc_keeps_counts_by_its_content(project: Path) -> None:
    git(project, "rm", "-q", "--cached", "source.txt")
    dvc(project, "add", "-q", "source.txt")
    commit(project)
    before = keys("collect")

    Path("source.txt").write_text("other\n")
    dvc(project, "add", "-q", "source.txt")
    commit(project)

    assert keys("collect") != before


def test_what_a_run_reads_and_writes_is_that_of_its_targets(project: Path) -> None:
    facts = facts_of_targets(["train"], Path("toy.yaml"))
    assert facts.sections == {"model", "other"}
    assert facts.outs == {Path("documents.txt"), Path("tokens.txt"), Path("scores.json"), Path("curve.tsv")}
    assert set(source_hashes(["tokenize"])) == {"source.txt"}
    with pytest.raises(UserError, match=r"^toy\.yaml: targets: .*trian"):
        facts_of_targets(["trian"], Path("toy.yaml"))
