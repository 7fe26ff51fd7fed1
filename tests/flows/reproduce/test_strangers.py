"""Someone else's revision: what is asked before its code runs, and what it gets of the user's."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flows.reproduce.environment import choose_interpreter, make_environment
from flows.reproduce.revision import read_revision, require_as_published
from stages.formats.revision.provenance import EXECUTION, RECORDED_REQUIREMENTS
from stages.formats.revision.statement import GitState
from stages.runtime.errors import UserError
from tests.flows.reproduce.published import pin_only, seal, write_revision
from tests.flows.reproduce.small_training import commit, make_training
from tests.flows.toy import git, repro
from tests.small_project import ROOT

SECRET = "PLANTED-9f27c1"

SPYING = """\
import os
from pathlib import Path

Path("data").mkdir(exist_ok=True)
Path("data/environment.txt").write_text(repr(sorted(os.environ.items())))
Path("data/numbers.txt").write_text(Path("corpus.txt").read_text().replace(" ", "\\n"))
"""

PLANTED = {
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "HF_TOKEN": f"hf_{SECRET}",
    "MY_API_KEY": SECRET,
    "DATABASE_URL": f"postgres://user:{SECRET}@host/db",
    "HTTPS_PROXY": f"http://user:{SECRET}@127.0.0.1:9",
    "PIP_INDEX_URL": f"http://user:{SECRET}@127.0.0.1:9/simple",
    "PREFECT_API_KEY": SECRET,
    "PREFECT_API_URL": f"http://127.0.0.1:9/{SECRET}",
    "PARROTFLOW_MIRROR": f"s3://{SECRET}",
    "SSH_AUTH_SOCK": f"/tmp/{SECRET}",
    "GIT_SSH_COMMAND": f"sshpass -p {SECRET} ssh",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "http.extraHeader",
    "GIT_CONFIG_VALUE_0": f"Authorization: Basic {SECRET}",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        return make_training(tmp_path_factory.mktemp("training") / "project")


@pytest.fixture
def revision(project: Path, tmp_path: Path) -> Path:
    return write_revision(project, tmp_path / "main")


def command_line(*arguments: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", "reproduce", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_yes_nothing_runs_and_it_is_said_whose_code_it_is(
    project: Path, revision: Path, tmp_path: Path
) -> None:
    state = GitState(commit=commit(project), dirty=False, origin="https://example.org/them/model.git")
    seal(revision, state)

    done = command_line("main", folder=tmp_path)

    assert done.returncode == 2
    assert "This runs the revision's code on this machine: https://example.org/them/model.git, commit " in done.stdout
    assert "; not signed." in done.stdout
    assert "then pass --yes" in done.stderr
    assert "Running stage" not in done.stdout
    assert not list(tmp_path.rglob("venv"))


def test_no_secret_of_the_user_is_in_what_a_reproduction_writes_or_its_code_sees(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, here = tmp_path / "theirs", tmp_path / "here"
    shutil.copytree(project, theirs)
    (theirs / "data.py").write_text(SPYING)
    git(theirs, "commit", "-qam", "spy")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    repro(theirs)
    write_revision(theirs, tmp_path / "main")
    here.mkdir()
    git(here, "init", "-q")
    git(here, "remote", "add", "origin", f"https://user:{SECRET}@127.0.0.1:9/x.git")
    home = tmp_path / "home"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text(f"[global]\nextra-index-url = http://user:{SECRET}@127.0.0.1:9/\n")

    done = command_line(
        str(tmp_path / "main"), "--yes", folder=here, HOME=str(home), SOME_OTHER_VARIABLE="1", **PLANTED
    )

    assert done.returncode == 0, done.stdout + done.stderr
    (seen,) = here.rglob("data/environment.txt")
    assert "'PATH'" in seen.read_text()
    assert "'SOME_OTHER_VARIABLE'" in seen.read_text()
    assert "('HF_HUB_DISABLE_IMPLICIT_TOKEN', '1')" in seen.read_text(), "the token in the user's home is not used"
    written = [file for file in here.rglob("*") if file.is_file() and file != here / ".git/config"]
    assert [file for file in written if SECRET.encode() in file.read_bytes()] == []
    assert SECRET not in done.stdout + done.stderr


def test_a_failed_installation_does_not_show_the_password_of_an_index(
    project: Path, revision: Path, tmp_path: Path
) -> None:
    locked = revision / RECORDED_REQUIREMENTS
    locked.write_text("no-such-library==1\n" + locked.read_text())
    seal(revision)

    done = command_line("main", "--yes", folder=tmp_path, PIP_RETRIES="0", **PLANTED)

    assert done.returncode == 2
    assert "No matching distribution found for setuptools==" in done.stderr  # the first to be installed
    assert SECRET not in done.stdout + done.stderr


def test_what_a_download_and_a_clone_have_next_to_a_revision_is_ignored(revision: Path) -> None:
    for path in (".gitattributes", ".git/config", ".cache/huggingface/download/config.json.metadata"):
        (revision / path).parent.mkdir(parents=True, exist_ok=True)
        (revision / path).write_text("of the Hub")

    require_as_published("main", revision)


def test_a_revision_that_was_edited_is_to_be_fetched_again_by_its_tag(revision: Path) -> None:
    (revision / "NOTES.md").write_text("by hand")

    with pytest.raises(UserError, match=r"NOTES\.md: is not part of this revision; fetch it again, .* by the tag"):
        require_as_published("me/tiny", revision)


def test_an_environment_is_made_with_the_recorded_minor_version_of_python(
    revision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = ".".join(map(str, sys.version_info[:3]))
    there = f'"python": "{recorded}"'
    (revision / EXECUTION).write_text((revision / EXECUTION).read_text().replace(there, '"python": "3.97.1"'))
    seal(revision)
    found = read_revision("main", revision, tmp_path)
    with pytest.raises(UserError, match=r"made with Python 3\.97\.1; .*PATH has no python3\.97: install it"):
        make_environment(found, recorded)

    (tmp_path / "python3.97").write_text('#!/bin/sh\necho "this is 3.97: $*" >&2\nexit 1\n')
    (tmp_path / "python3.97").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    with pytest.raises(UserError, match=r"this is 3\.97: -m venv"):
        make_environment(found, recorded)


def test_an_environment_is_made_from_the_lock(revision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    pin_only(revision, "tiny==1.0\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    chosen = choose_interpreter(read_revision("main", revision, tmp_path))

    assert chosen.how == f"{tmp_path / 'venv'}, made from the lock"
    assert chosen.python == tmp_path / "venv/bin/python"
    assert chosen.machine.versions["tiny"] == "1.0"
