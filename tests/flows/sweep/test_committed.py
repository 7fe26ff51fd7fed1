"""What stages read and git ignores, such as the files in corpus/, is named before a cell starts without it."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from flows.experiments.runs import Batch
from flows.sweep import clone
from flows.sweep.plan import standings
from flows.sweep.pool import commit_for_workers
from stages.runtime.entry import UserError
from tests.flows.sweep.test_run_cells import CELL, RECORD, reason_to_run, recorded
from tests.flows.sweep.toy_sweep import DVC_YAML, commit, git, make_sweep
from tests.flows.toy import dvc

OWN_DATA = DVC_YAML.replace("cat source.txt source.txt", "cat corpus/*.txt").replace("[source.txt]", "[corpus]")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One whose corpus/ is ignored as it is shipped, and has files of the user."""
    folder = make_sweep(tmp_path / "toy", OWN_DATA)
    (folder / "corpus/mine").mkdir(parents=True)
    (folder / "corpus/.gitignore").write_text("*\n!.gitignore\n")
    for name in ("a.txt", "mine/b.txt", ".hidden"):
        (folder / "corpus" / name).write_text(f"{name}\n")
    (folder / "corpus/__pycache__").mkdir()
    (folder / "corpus/__pycache__/x.pyc").touch()
    (folder / ".dvcignore").write_text("/corpus/**/.*\n")
    commit(folder)
    monkeypatch.chdir(folder)
    return folder


def test_a_sweep_here_or_on_a_pool_is_refused_with_what_its_cells_would_lack(project: Path) -> None:
    told = r"^the cells read corpus/a\.txt, corpus/mine/b\.txt, which git ignores; .*`git add -f corpus` .*`dvc add`$"
    for commit_of in (clone.head_commit, commit_for_workers):
        with pytest.raises(UserError, match=told):
            commit_of(["train"])

    git(project, "add", "-f", "corpus")
    commit(project)
    assert clone.head_commit(["train"])
    with pytest.raises(UserError, match="no default DVC remote"):
        commit_for_workers(["train"])


def test_files_of_a_copied_repository_are_named_and_what_git_ignores_on_this_machine_alone(project: Path) -> None:
    git(project, "add", "-f", "corpus/a.txt")
    subprocess.run(["git", "init", "-q", "corpus/mine"], check=True)
    (project / ".git/info").mkdir(exist_ok=True)
    (project / ".git/info/exclude").write_text("/source.txt\n")
    (project / "dvc.yaml").write_text(OWN_DATA.replace("deps: [corpus]", "deps: [corpus, source.txt]"))
    git(project, "rm", "-q", "--cached", "source.txt")
    commit(project)

    with pytest.raises(UserError, match=r"read corpus/mine/.*b\.txt, source\.txt, which git ignores"):
        clone.head_commit(["train"])


def test_what_dvc_tracks_comes_from_its_cache(project: Path) -> None:
    (project / "corpus/.gitignore").write_text("*\n!.gitignore\n!*.dvc\n")
    dvc(project, "add", "-q", "corpus/a.txt", "corpus/mine")
    commit(project)

    folder = clone.prepare(CELL, clone.head_commit(["train"]), clone.CLONES / CELL.id)

    assert (folder / "corpus/a.txt").read_text() == "a.txt\n"
    assert (folder / "corpus/mine/b.txt").read_text() == "mine/b.txt\n"


WITH_CODE = DVC_YAML.replace("deps: [train.py,", "deps: [train.py, data/code/make.json,").replace(
    "deps: [scores.json]", "deps: [scores.json, data/code/publish.json]"
)
CODE = "  code: {cmd: python -m stages.code, deps: [requirements.lock, stages], outs: [data/code]}\n"
OWN = Path("stages/make/own.py")
GATE = Path("stages/publish/revision.py")


@pytest.fixture
def coded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One whose stage `train` depends on the code of `make`, with a recorded cell."""
    folder = make_sweep(tmp_path / "toy", WITH_CODE + CODE)
    for package, module in (("make", "own"), ("publish", "revision")):
        (folder / "stages" / package).mkdir(parents=True)
        (folder / "stages" / package / "__main__.py").write_text(f"import stages.{package}.{module}\n")
    (folder / OWN).write_text("import numpy\n")
    (folder / GATE).write_text("X = 1\n")
    (folder / "requirements.lock").write_text("numpy==1.0\nrich==1.0\nclick==1.0\n")
    (folder / "params.yaml").write_text((folder / "params.yaml").read_text() + "make: {sources: []}\n")
    (folder / ".gitignore").write_text("/.parrotflow/\n/code/\n.DS_Store\n")
    commit(folder)
    monkeypatch.chdir(folder)
    recorded(folder)
    return folder


def test_edits_that_no_stage_of_the_cells_uses_run_nothing_and_stop_nothing(coded: Path) -> None:
    OWN.write_text("# A comment.\nimport numpy\n")
    GATE.write_text("X = 2\n")
    Path("requirements.lock").write_text("numpy==1.0\nrich==2.0\nclick==1.0\n")
    text = Path("dvc.yaml").read_text()
    Path("dvc.yaml").write_text(text.replace("[requirements.lock, stages]", "[stages, requirements.lock]"))
    commit(coded)
    GATE.write_text("no Python\n")
    OWN.write_text("import numpy  # another\n")
    OWN.with_name(".own.py.swp").touch()
    OWN.with_name(".#own.py").symlink_to("an editor's lock")
    OWN.with_name(".DS_Store").touch()

    assert clone.head_commit(["train"]) == git(coded, "rev-parse", "HEAD").strip()
    assert reason_to_run("train") == ""
    with pytest.raises(UserError, match=r"^stages/publish/revision\.py: line 1: "):
        clone.head_commit(["publish"])


def test_an_edit_and_an_upgrade_of_what_they_use_have_to_be_committed_and_run_them_again(coded: Path) -> None:
    OWN.write_text("import numpy\nimport stages.make.new\n")
    OWN.with_name("new.py").write_text("X = 1\n")
    Path("requirements.lock").write_text("numpy==2.0\nrich==1.0\nclick==1.0\n")

    told = r"^stages/make/new\.py, stages/make/own\.py, numpy in requirements\.lock: not as in the last commit"
    for commit_of in (clone.head_commit, commit_for_workers):
        with pytest.raises(UserError, match=told):
            commit_of(["train"])
    assert reason_to_run("train") == ""

    commit(coded)
    assert clone.head_commit(["train"])
    assert reason_to_run("train") == "stages/make/new.py, stages/make/own.py, numpy in requirements.lock changed since"
    assert reason_to_run("tokenize") == ""


def test_a_stage_whose_code_was_not_there_or_no_python_runs_again(coded: Path) -> None:
    before = git(coded, "rev-parse", "HEAD").strip()
    OWN.with_name("__main__.py").rename(OWN.with_name("main.py"))
    with pytest.raises(UserError, match=r"^stages/make/__main__\.py: not as in the last commit"):
        clone.head_commit(["train"])
    commit(coded)
    assert clone.changed_since(before, ["train"]) == ["stages/make/__main__.py"]

    git(coded, "revert", "--no-edit", "HEAD")
    GATE.write_text("no Python\n")
    commit(coded)
    broken = git(coded, "rev-parse", "HEAD").strip()
    with pytest.raises(
        UserError, match=rf"^commit {broken[:12]}: stages/publish/revision\.py: line 1: .*; correct it first"
    ):
        clone.head_commit(["train"])
    GATE.write_text("X = 1\n")
    commit(coded)
    assert clone.changed_since(before, ["train"]) == []
    assert clone.changed_since(broken, ["train"]) == ["stages/make/__main__.py"]


def test_the_version_of_a_package_counts_where_it_is_the_corpus_of_the_cell(coded: Path) -> None:
    corpus = {"make.sources": [{"kind": "packages", "names": ["click"]}]}
    cells = [replace(CELL, overrides=overrides) for overrides in ({}, corpus)]
    Path("requirements.lock").write_text("numpy==1.0\nrich==1.0\nclick==2.0\n")
    commit(coded)

    reasons = [standings(Batch("toy", [cell], ["train"], (), (), RECORD))[CELL.id].reason for cell in cells]
    assert reasons == ["", "click in requirements.lock changed since"]


def test_without_a_stage_that_records_code_the_whole_folder_counts_as_its_stages_name_it(coded: Path) -> None:
    Path("dvc.yaml").write_text(DVC_YAML.replace("deps: [train.py,", "deps: [train.py, stages,"))
    commit(coded)
    before = git(coded, "rev-parse", "HEAD").strip()
    GATE.write_text("X = 1  # a comment\n")
    with pytest.raises(UserError, match=r"^stages/publish/revision\.py: not as in the last commit"):
        clone.head_commit(["train"])
    commit(coded)
    assert clone.changed_since(before, ["train"]) == ["stages/publish/revision.py"]
