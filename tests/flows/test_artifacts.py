"""The model as an artifact of dvc.yaml, as DVC's own commands find it."""

from pathlib import Path

import yaml

from flows.checkout import uncached_outs
from tests.flows.toy import commit, dvc, git, make_toy, repro
from tests.small_project import ROOT

PIPELINE = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
TRAIN = {"cmd": "mkdir -p model && echo weights > model/model.safetensors", "outs": ["model"]}


def test_dvc_gets_the_model_of_a_project_with_a_tag_by_its_name(tmp_path: Path) -> None:
    assert "model" in PIPELINE["stages"]["train"]["outs"]
    toy = {"stages": {"train": TRAIN}, "artifacts": PIPELINE["artifacts"]}
    folder = make_toy(tmp_path / "toy", yaml.safe_dump(toy))
    repro(folder)
    commit(folder)
    git(folder, "tag", "-a", "model@v0.1.0", "-m", "first")

    dvc(folder, "artifacts", "get", ".", "model", "--out", "got")

    assert (folder / "got/model.safetensors").read_text() == "weights\n"
    kept = uncached_outs(folder)
    assert "model" not in kept, "git does not track what DVC caches"
    assert "reports/train_speed.json" in kept
