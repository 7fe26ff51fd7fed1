"""What stages read and git ignores, such as the files in corpus/, is named before a cell starts without it."""

import subprocess
from pathlib import Path

import pytest

from flows.sweep import clone
from flows.sweep.pool import commit_for_workers
from stages.runtime.entry import UserError
from tests.flows.sweep.test_run_cells import CELL
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
