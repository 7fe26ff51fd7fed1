"""The forecast as a command, where `parrotflow` asks for it."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.small_project import ROOT
from tests.train.small_run import environment


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the real parameters and presets."""
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


def parrotflow_params(project: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "flows.cli", "params", *words, "--yes"]
    return subprocess.run(command, cwd=project, env=environment(), check=False, capture_output=True, text=True)


def test_parrotflow_params_says_what_the_training_of_what_it_composed_costs(project: Path) -> None:
    said = parrotflow_params(project, "train.max_steps=2000")

    assert said.returncode == 0, said.stderr
    assert "model: 1,279,360 parameters, 9.25 MFLOPs per token; 4,096,000 tokens in 2,000 steps" in said.stdout
    assert "memory: about " in said.stdout


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.model.hidden_size=-64", "cannot build `qwen3`"),
        ("train.model.model_type=gpt5", "no such architecture in transformers"),
        ("train.sequence_length=512", "the model has 256 positions"),
    ],
)
def test_parrotflow_params_accepts_nothing_that_cannot_be_built(project: Path, word: str, message: str) -> None:
    before = (project / "params.yaml").read_text(encoding="utf-8")

    said = parrotflow_params(project, word)

    assert said.returncode == 2
    assert message in said.stderr
    assert "params.yaml is left as it was" in said.stderr
    assert (project / "params.yaml").read_text(encoding="utf-8") == before


def test_a_value_of_another_stage_asks_nothing_of_the_model(project: Path) -> None:
    said = parrotflow_params(project, "evaluate.bootstrap_resamples=900")

    assert "model: " not in said.stdout
    assert yaml.safe_load((project / "params.yaml").read_text())["evaluate"]["bootstrap_resamples"] == 900
