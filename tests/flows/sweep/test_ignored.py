"""What stages read and git ignores, such as the files in corpus/, is in every clone as it is in the project."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.sweep import clone
from flows.sweep.ignored import ignored_inputs
from flows.sweep.pool import commit_for_workers
from stages.runtime.entry import UserError
from tests.flows.sweep.test_run_cells import CELL, reason_to_run, recorded
from tests.flows.sweep.toy_sweep import DVC_YAML, commit, git, make_sweep

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


def made() -> Path:
    head = clone.head_commit(["train"])
    return clone.bring_up_to_date(CELL, head, clone.CLONES / CELL.id, ignored=ignored_inputs(["train"]))


def corpus(folder: Path) -> dict[str, str]:
    files = (folder / "corpus").rglob("*.*")
    return {file.relative_to(folder / "corpus").as_posix(): file.read_text() for file in files}


def test_a_clone_has_the_users_files_and_a_cell_cannot_change_them_there(project: Path) -> None:
    folder = made()

    assert corpus(folder) == {".gitignore": "*\n!.gitignore\n", "a.txt": "a.txt\n", "mine/b.txt": "mine/b.txt\n"}
    (folder / "corpus/a.txt").write_text("changed by a cell")
    assert (project / "corpus/a.txt").read_text() == "a.txt\n"
    assert git(project, "status", "--porcelain") == ""


def test_a_clone_that_is_there_follows_what_was_changed_added_and_removed(project: Path) -> None:
    made()
    (project / "corpus/a.txt").write_text("other\n")
    (project / "corpus/c.txt").write_text("new\n")
    (project / "corpus/mine/b.txt").unlink()

    assert corpus(made()) == {".gitignore": "*\n!.gitignore\n", "a.txt": "other\n", "c.txt": "new\n"}

    for name in ("a.txt", "c.txt"):
        (project / "corpus" / name).unlink()
    assert corpus(made()) == {".gitignore": "*\n!.gitignore\n"}


def test_a_copied_repository_is_there_too_and_what_git_ignores_on_this_machine_alone(project: Path) -> None:
    subprocess.run(["git", "init", "-q", "corpus/mine"], check=True)
    (project / ".git/info").mkdir(exist_ok=True)
    (project / ".git/info/exclude").write_text("/source.txt\n")
    (project / "dvc.yaml").write_text(OWN_DATA.replace("deps: [corpus]", "deps: [corpus, source.txt]"))
    git(project, "rm", "-q", "--cached", "source.txt")
    commit(project)

    folder = made()

    assert "mine/b.txt" in corpus(folder)
    assert (folder / "source.txt").read_text() == "0123456789\n"
    assert git(folder, "ls-files", "--others", "--exclude-standard") == ""


def test_what_dvc_tracks_comes_from_its_cache_instead(project: Path) -> None:
    (project / "corpus/.gitignore").write_text("*\n!.gitignore\n!*.dvc\n")
    add = [sys.executable, "-m", "dvc", "add", "-q", "corpus/a.txt", "corpus/mine"]
    subprocess.run(add, check=True)
    commit(project)

    assert ignored_inputs(["train"]).files == ()
    assert {"a.txt", "mine/b.txt"} <= corpus(made()).keys()


def test_links_lead_to_the_same_files_and_stay_links(project: Path) -> None:
    (project / "corpus/inside.txt").symlink_to("a.txt")
    (project / "corpus/outside.txt").symlink_to("../source.txt")

    folder = made()

    assert (folder / "corpus/inside.txt").readlink() == Path("a.txt")
    assert (folder / "corpus/outside.txt").is_symlink()
    assert (folder / "corpus/outside.txt").resolve() == project / "source.txt"


def test_a_cell_runs_again_where_such_a_file_has_changed(project: Path) -> None:
    recorded(project, ignored_inputs(["collect"]).hashes)
    assert reason_to_run("collect") == ""

    (project / "corpus/a.txt").write_text("other\n")
    assert reason_to_run("collect") == "corpus changed since"

    recorded(project)  # of an earlier version, which did not see such files
    assert reason_to_run("collect") == "corpus changed since"


def test_a_pool_is_refused_since_its_workers_could_not_get_them(project: Path) -> None:
    with pytest.raises(UserError, match=r"corpus/a\.txt, corpus/mine/b\.txt, which git ignores; .*`git add -f corpus`"):
        commit_for_workers(["train"])

    git(project, "add", "-f", "corpus")
    commit(project)
    with pytest.raises(UserError, match="no default DVC remote"):
        commit_for_workers(["train"])
