"""The printed list of a model's tensors, each with its optimizer."""

import subprocess
import sys
from pathlib import Path

import yaml

from stages.train.commands.groups import lines
from stages.train.params import TrainParams
from tests.small_project import ROOT
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import environment, params


def test_a_line_for_each_kind_of_tensor_says_its_optimizer_and_decay() -> None:
    values = TrainParams.model_validate(params(model=MODELS["mixtral"]))
    found = [line.split() for line in lines(values, vocabulary())]
    assert ["muon", "0.1", "experts", "2", "6,144", "model.layers.*.mlp.experts.gate_up_proj"] in found
    assert ["adamw", "0.1", "router", "2", "128", "model.layers.*.mlp.gate.weight"] in found
    assert ["adamw", "0.1", "head", "1", "5,120", "lm_head.weight"] in found
    assert ["adamw", "0", "embedding", "1", "5,120", "model.embed_tokens.weight"] in found
    assert len(found) == 13


def test_parrotflow_params_prints_it_where_a_model_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")

    def said(*words: str) -> str:
        command = [sys.executable, "-m", "flows.cli", "params", *words, "--yes"]
        return subprocess.run(
            command, cwd=tmp_path, env=environment(), check=True, capture_output=True, text=True
        ).stdout

    assert "embedding" in said("model=gpt2", "optimizer=adamw")
    assert yaml.safe_load((tmp_path / "params.yaml").read_text())["train"]["optimizer"]["name"] == "adamw"
    assert "embedding" not in said("train.max_steps=900")
