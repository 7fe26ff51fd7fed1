"""`dvc exp run -S GROUP=CHOICE` does to params.yaml what `parrotflow params GROUP=CHOICE` does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.utils.hydra import compose_and_dump

from flows.project.compose import composed_text, groups
from stages.runtime.section import read_params_file
from tests.flows.small_pipeline import environment, git, make_pipeline
from tests.forked import DVC, run_forked
from tests.small_project import ROOT


@pytest.mark.parametrize(
    "word", [f"{group}={choice}" for group, choices in groups(ROOT / "conf").items() for choice in choices]
)
def test_dvc_composes_every_preset_to_the_values_that_parrotflow_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.chdir(ROOT)
    ours, dvcs = tmp_path / "ours.yaml", tmp_path / "dvcs.yaml"
    shutil.copyfile("params.yaml", ours)
    ours.write_text(composed_text([word], ours))

    compose_and_dump(dvcs, str(ROOT / "conf"), None, "config", str(tmp_path), [word])

    assert read_params_file(dvcs) == read_params_file(ours)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped params.yaml and DVC's shipped settings, in a repository of their own."""
    folder = make_pipeline(tmp_path_factory.mktemp("composed") / "project", documents=2)
    shutil.copytree(ROOT / "flows", folder / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("params.yaml", ".dvc/config"):
        shutil.copyfile(ROOT / file, folder / file)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "as shipped")
    return folder


def queued(folder: Path, *words: str) -> tuple[int, str]:
    """Queue an experiment with these `-S` words; the exit code and what is said."""
    options = [option for word in words for option in ("-S", word)]
    command = ["exp", "run", "--queue", *options]
    ended = run_forked(DVC, command, folder, environment(folder), stderr=subprocess.STDOUT)
    return ended.returncode, ended.stdout


def test_text_of_params_yaml_that_looks_like_an_interpolation_stays_text(tmp_path: Path) -> None:
    said = "see ${oc.env:HOME} and ${publish.name}, which costs ${5}"
    text = (ROOT / "params.yaml").read_text().replace("A small model of Python code.", f'"{said}"')
    (tmp_path / "params.yaml").write_text(text)
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    plugins, conf = str(ROOT / "flows/project"), str(tmp_path / "conf")
    composing = f"compose_and_dump('params.yaml', {conf!r}, None, 'config', {plugins!r}, ['train.seed=1'])"

    # In a process of its own: Hydra loads its plugins once.
    command = [sys.executable, "-c", f"from dvc.utils.hydra import compose_and_dump; {composing}"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)

    values = read_params_file(tmp_path / "params.yaml")
    assert values["card"]["description"] == said
    assert values["train"]["seed"] == 1


def test_an_experiment_gets_the_chosen_values_and_params_yaml_keeps_its_comments(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = queued(project, "model=llama_mini", "optimizer=muon,adamw", "train.max_steps=70")

    assert code == 0, said
    assert said.count("Queued experiment") == 2  # one for each choice, the newest with adamw
    monkeypatch.chdir(ROOT)
    shown = ["git", "show", "refs/exps/celery/stash:params.yaml"]
    text = subprocess.run(shown, cwd=project, check=True, capture_output=True, text=True).stdout
    assert text == composed_text(["model=llama_mini", "optimizer=adamw", "train.max_steps=70"])
    assert "name: adamw                   # muon (matrices; adamw for the rest), adamw" in text


def test_a_word_that_no_stage_would_take_is_refused_and_nothing_is_queued(project: Path) -> None:
    refused = {
        "optimizer=adamx": "Could not find 'optimizer/adamx'\n\nAvailable options in 'optimizer':\n\tadamw\n\tmuon\n",
        "+optimizer=adamw": "Multiple values for optimizer",
        "+optimiser=adamw": "ERROR: params.yaml: optimiser: no stage has such a section\n",
        "train.max_steps=-3": "ERROR: params.yaml: train.max_steps = -3: Input should be greater than or equal to 1\n",
    }
    for word, message in refused.items():
        code, said = queued(project, word)
        assert code != 0
        assert message in said
        assert "Queued experiment" not in said
    assert (project / "params.yaml").read_bytes() == (ROOT / "params.yaml").read_bytes()
