"""A pipeline of shell commands in a git and DVC repository of its own."""

import subprocess
from pathlib import Path

from tests.small_project import DVC, make_repository, run_module

DVC_YAML = """\
stages:
  first:
    cmd: cp source.txt first.txt
    deps: [source.txt]
    outs: [first.txt]
  left:
    cmd: head -c 3 first.txt > left.txt
    deps: [first.txt]
    params: [left]
    outs: [left.txt]
  right:
    cmd: tail -c 3 first.txt > right.txt
    deps: [first.txt]
    params:
      - other.yaml: [torch]
    outs: [right.txt]
  join:
    cmd: cat left.txt right.txt > join.txt
    deps: [left.txt, right.txt]
    outs: [join.txt]
"""


def make_toy(folder: Path, dvc_yaml: str = DVC_YAML) -> Path:
    """Write the pipeline into `folder`, not yet run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dvc.yaml").write_text(dvc_yaml)
    (folder / "params.yaml").write_text("left: {rate: 1, name: a}\n")
    (folder / "other.yaml").write_text("torch: '1'\n")
    (folder / "source.txt").write_text("0123456789\n")
    make_repository(folder)
    (folder / ".gitignore").write_text("/.parrotflow/\n/report.html\n")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """A command of git in `folder`; its output. Raises where it fails."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.rstrip("\n")


def commit(folder: Path) -> None:
    """Commit everything."""
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a change")


def add_submodule(folder: Path, path: str) -> None:
    """Commit a submodule with a file; its repository is next to `folder`, and may be cloned only if git is told so."""
    data = folder.parent / "data"
    data.mkdir()
    git(data, "init", "-q")
    (data / "text.txt").write_text("of the submodule")
    git(data, "add", "-A")
    git(data, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "data")
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(data), path)
    commit(folder)


def dvc(folder: Path, *arguments: str) -> str:
    """A command of DVC in `folder`; its output. Raises where it fails."""
    done = run_module(DVC, arguments, folder)
    done.check_returncode()
    return done.stdout


def repro(folder: Path, *arguments: str) -> str:
    """`dvc repro` in `folder`; its output."""
    return dvc(folder, "repro", *arguments)
