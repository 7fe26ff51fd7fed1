"""A project of one's own from the built wheel, and a later version that comes to it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from dvc.repo import Repo
from dvc.scm import NoSCM

from flows.project import new
from stages.runtime.entry import UserError
from tests.small_project import ROOT


def output(folder: Path, *command: str, ok: bool = True, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode == 0) is ok, done.stderr + done.stdout
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an installed wheel has, in a folder."""
    place = tmp_path_factory.mktemp("wheel")
    # Of a clone: setuptools leaves what it builds beside the sources.
    output(place, "git", "clone", "--quiet", "--depth=1", ROOT.as_uri(), "clone")
    pip = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
    )
    output(place, *pip, "--wheel-dir", "built", "./clone")
    (built,) = (place / "built").glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(place / "installed")
    return place / "installed"


def parrotflow(installed: Path, folder: Path, *words: str, ok: bool = True) -> str:
    return output(folder, sys.executable, "-P", "-m", "flows.cli", *words, ok=ok, PYTHONPATH=str(installed))


def test_a_project_from_the_wheel_runs_by_its_own_files(wheel: Path, tmp_path: Path) -> None:
    said = parrotflow(wheel, tmp_path, "new", "mine", "corpus=folder", "tokenizer.vocabulary_size=300")

    project = tmp_path / "mine"
    assert "cd mine && make run" in said
    assert output(project, "git", "status", "--porcelain") == ""
    assert output(project, "git", "log", "--format=%s", "main").splitlines()[0] == "Begin a project"
    assert not {"experiments", "searches", "dvc.lock", "benchmarks"} & {path.name for path in project.iterdir()}
    for number in range(12):
        words = " ".join(f"word{number * step} of a text" for step in range(1, 60))
        (project / f"corpus/{number}.txt").write_text(f"{words}.\n")
    said = output(project, sys.executable, "-m", "flows.cli", "run", "tokenize", PYTHONPATH=str(project))
    assert "tokenize" in said
    assert (project / "data/tokens/train").is_dir()


def test_a_later_version_is_shown_and_merged_and_edits_of_ones_own_stay(wheel: Path, tmp_path: Path) -> None:
    parrotflow(wheel, tmp_path, "new", "mine")
    project = tmp_path / "mine"
    assert "is up to date" in parrotflow(wheel, tmp_path, "new", "mine", "--update")
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("max_steps: 1790", "max_steps: 7"))
    assert "not committed" in parrotflow(wheel, tmp_path, "new", "mine", "--update", ok=False)
    output(project, "git", "-c", "user.name=me", "-c", "user.email=me@here", "commit", "-qam", "Fewer steps")

    later = tmp_path / "later"
    output(tmp_path, "cp", "-a", str(wheel), str(later))
    with (later / "flows/project/files/params.yaml").open("a") as file:
        file.write("# of a later version\n")
    (later / "stages/added.py").write_text('"""Added later."""\n')
    assert "left as it was" in parrotflow(later, tmp_path, "new", "mine", "--update", ok=False)
    assert not (project / "stages/added.py").exists()
    said = parrotflow(later, tmp_path, "new", "mine", "--update", "--yes")

    assert "stages/added.py" in said
    assert (project / "stages/added.py").exists()
    assert "max_steps: 7" in params.read_text()
    assert "# of a later version" in params.read_text()
    assert "is up to date" in parrotflow(later, tmp_path, "new", "mine", "--update")


def test_edits_of_the_same_lines_are_left_to_the_user_by_name(wheel: Path, tmp_path: Path) -> None:
    parrotflow(wheel, tmp_path, "new", "mine")
    project = tmp_path / "mine"
    makefile = project / "Makefile"
    makefile.write_text("# mine\n" + makefile.read_text())
    output(project, "git", "-c", "user.name=me", "-c", "user.email=me@here", "commit", "-qam", "A remark")
    later = tmp_path / "later"
    output(tmp_path, "cp", "-a", str(wheel), str(later))
    file = later / "flows/project/files/Makefile"
    file.write_text("# theirs\n" + file.read_text())

    said = parrotflow(later, tmp_path, "new", "mine", "--update", "--yes", ok=False)

    assert "touch the same lines" in said
    assert "Traceback" not in said
    assert "Makefile" in output(project, "git", "diff", "--name-only", "--diff-filter=U")


def test_a_folder_that_cannot_be_updated_is_told_and_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        new.update_project(tmp_path / "mine")
    new.new_project(tmp_path / "mine", ())
    output(tmp_path / "mine", "git", "checkout", "--quiet", new.BRANCH)
    with pytest.raises(UserError, match="has the branch `parrotflow` checked out"):
        new.update_project(tmp_path / "mine")


def test_a_project_has_every_file_that_its_stages_read_and_none_makes(tmp_path: Path) -> None:
    new.write_files(tmp_path / "mine")

    with Repo(str(tmp_path / "mine"), scm=NoSCM(str(tmp_path / "mine"))) as repo:
        made = [Path(out.fs_path) for stage in repo.index.stages for out in stage.outs]
        read = {Path(dep.fs_path) for stage in repo.index.stages for dep in stage.deps}

    assert [path.name for path in read if not path.exists() and not {path, *path.parents}.intersection(made)] == []


def test_a_folder_with_files_is_refused_and_a_wrong_value_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")

    assert "full is not empty" in parrotflow(wheel, tmp_path, "new", "full", ok=False)
    assert "max_stepz" in parrotflow(wheel, tmp_path, "new", "mine", "train.max_stepz=1", ok=False)
    assert not (tmp_path / "mine").exists()


def test_a_project_that_cannot_be_begun_is_told_by_its_own_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(folder: Path) -> None:
        raise OSError("no room")

    monkeypatch.setattr(new, "write_files", no_room)

    with pytest.raises(OSError, match="no room"):
        new.new_project(tmp_path / "mine", ())
