"""Publishes what a DVC experiment made, without touching the user's working tree, and leads `main` to it.

The experiment's commit is checked out into a folder of its own, its results come from DVC's cache, and publishing runs
there; the revision goes to the project's own place. The receipt stays as it is: it says what the stage publish did, and
this was not that stage.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from stages.publish.__main__ import gathered, publish
from stages.publish.gate import Gate
from stages.publish.inputs import ALL, read_inputs
from stages.publish.params import PublishParams
from stages.runtime.entry import UserError, run_stage
from stages.runtime.section import read_section

TEMPORARY = Path(".dvc/tmp")

CACHE_SETTINGS = """[cache]
    dir = "{folder}"
    type = "reflink,hardlink,symlink,copy"
"""
"""Of the temporary checkout: results come from the project's cache, as links where the file system has them."""

CODE = Path(__file__).parents[3]
"""What has the package `stages`: publishing is done by this version, whatever the experiment's commit has."""


def publish_experiment(name: str, *, allow_worse: bool) -> None:
    """Publish an experiment of `dvc exp show`. Raises UserError where there is none, or its results are not cached."""
    commit = experiment_commit(name)
    with checked_out(commit) as folder:
        settings = CACHE_SETTINGS.format(folder=dvc(Path.cwd(), "cache", "dir"))
        (folder / ".dvc/config.local").write_text(settings, encoding="utf-8")
        missing = [path.as_posix() for path in ALL if not (folder / path).exists()]
        if missing:
            dvc(folder, "checkout", "--quiet", *missing, remedy="`dvc fetch` of that commit brings its results here")
        options = [str(Path.cwd()), *(["--allow-worse"] if allow_worse else [])]
        command = [sys.executable, "-P", "-m", "stages.publish.registry.experiment", *options]
        path = os.pathsep.join(filter(None, [str(CODE), os.environ.get("PYTHONPATH")]))
        code = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, check=False).returncode
    if code:
        raise SystemExit(code)  # it has said why


def main() -> None:
    """Publish the project in the current folder to the place of another one; run by `publish_experiment`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("project", type=Path)
    parser.add_argument("--allow-worse", action="store_true")
    arguments = parser.parse_args()
    # The experiment may have been made under another gate, or for another place.
    today = read_section("publish", PublishParams, arguments.project / "params.yaml")
    place = {"name": today.name, "folder": today.folder, "repository": today.repository, "private": today.private}
    params = read_section("publish", PublishParams).model_copy(update=place)
    inputs = read_inputs()
    conditions = today.gate
    if arguments.allow_worse:
        conditions = conditions.model_copy(update={"allow_worse": True, "bits_per_byte_at_most": None})
    advice = "nothing was published; --allow-worse publishes it nevertheless"
    gate = Gate(conditions, inputs.evaluation, advice)
    gate.check_limit()
    with gathered(params, inputs) as revision:
        there = params.model_copy(update={"folder": str(arguments.project / params.folder)})
        receipt = publish(revision, there, gate)
    print(f"published revision {receipt.revision}, and main leads to it; your working tree is as it was")


def experiment_commit(name: str) -> str:
    """The commit of an experiment. Raises UserError where there is none of that name, or several."""
    lines = git("for-each-ref", "--format=%(refname) %(objectname)", "refs/exps").splitlines()
    refs = [line.split() for line in lines]
    found = {commit for ref, commit in refs if len(ref.split("/")) == 5 and ref.endswith(f"/{name}")}
    if len(found) != 1:
        problem = "no experiment of that name" if not found else "several experiments have that name"
        raise UserError(f"--experiment {name}: {problem}; `dvc exp list --all-commits` names them")
    return found.pop()


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A temporary checkout of a commit: the folder in it that corresponds to the current one."""
    below = git("rev-parse", "--show-prefix")
    without_hooks = ("-c", f"core.hooksPath={os.devnull}")
    TEMPORARY.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=TEMPORARY.absolute(), prefix="promoted-") as temporary:
        tree = Path(temporary) / "tree"
        git(*without_hooks, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree / below
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*arguments: str) -> str:
    """What git prints. Raises UserError where it fails."""
    return run(["git", *arguments], Path.cwd(), "")


def dvc(folder: Path, *arguments: str, remedy: str = "") -> str:
    """What DVC prints in a folder. Raises UserError where it fails."""
    return run([sys.executable, "-m", "dvc", *arguments], folder, remedy)


def run(command: list[str], folder: Path, remedy: str) -> str:
    """What a command prints. Raises UserError with the end of its errors."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        said = [line for line in result.stderr.splitlines() if line.strip()] or ["failed"]
        raise UserError("; ".join(filter(None, [f"{' '.join(command[-3:])}: {said[0]}", remedy])))
    return result.stdout.strip()


if __name__ == "__main__":
    run_stage(main)
