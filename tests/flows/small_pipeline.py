"""The real pipeline in a folder of its own: the project's code and dvc.yaml, a tiny corpus, a tiny model."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.flows.toy import commit
from tests.small_project import DVC, ROOT, SECTIONS, make_repository, run_module, write_corpus, write_params

STAGES = [
    "code",
    "collect",
    "clean",
    "tokenizer",
    "tokenize",
    "corpus_page",
    "train",
    "evaluate",
    "yardstick",
    "generate",
    "score",
    "harness",
    "card",
    "publish",
]

CODE = (
    "stages",
    "evaluation",
    "deploy/launch",
    "conf",
    "dvc.yaml",
    "requirements.lock",
    "pyproject.toml",
)


def make_pipeline(folder: Path, documents: int = 40) -> Path:
    """Write the project into `folder`, under git and DVC, not yet run."""
    folder.mkdir(parents=True)
    for name in CODE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, folder / name)
    # Changes here are about what runs: a model that comes out a little worse is published all the same.
    write_params(folder, *SECTIONS, train__max_steps=6, publish__gate__allow_worse=True)
    write_corpus(folder, documents)
    for name in (".gitignore", ".dvcignore"):
        (folder / name).write_text((ROOT / name).read_text())
    make_repository(folder)
    commit(folder)
    return folder


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Run a command in `folder` with this Python first on the path; its output. Raises where it fails."""
    result = subprocess.run(
        command, cwd=folder, env=environment(folder, **variables), capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise AssertionError(f"{' '.join(command)} left with {result.returncode}:\n{result.stdout}\n{result.stderr}")
    return result.stdout


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """The environment of the pipeline's commands: one thread, one worker, no compiler, the folder's own packages."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    values = {"PATH": path, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PARROTFLOW_WORKERS": "1"}
    values |= {"PARROTFLOW_COMPILE": "off", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    return {**os.environ, **values, "HF_HOME": str(folder / ".parrotflow" / "hf"), **variables}


def dvc(folder: Path, *arguments: str, **variables: str) -> str:
    """A command of DVC in `folder`; its output. Raises where it fails."""
    done = run_module(DVC, arguments, folder, environment(folder, **variables))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def repro(folder: Path, *arguments: str, **variables: str) -> list[str]:
    """`dvc repro`; the stages that ran, in order."""
    said = dvc(folder, "repro", *arguments, **variables)
    return [line.split("'")[1] for line in said.splitlines() if line.startswith("Running stage")]


def outs(folder: Path) -> dict[str, str]:
    """Every out of dvc.lock with its hash."""
    lock = yaml.safe_load((folder / "dvc.lock").read_text())
    return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage["outs"]}
