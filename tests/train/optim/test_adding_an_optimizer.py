"""An optimizer is one file and its name in a list: the diff that CONTRIBUTING.md shows is applied, and trains."""

import shutil
import subprocess
from pathlib import Path

import yaml

from tests.small_project import ROOT
from tests.train.small_run import params, run, write_project


def test_the_optimizer_that_contributing_adds_trains_and_names_its_own_curve(tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    diff = text.partition("```diff\n")[2].partition("```")[0]
    (settings,) = (line.strip() for line in text.splitlines() if line.strip().startswith("optimizer: {"))
    code, project = tmp_path / "code", write_project(tmp_path / "project", max_steps=2)
    shutil.copytree(ROOT / "stages", code / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", "-"], cwd=code, input=diff, text=True, check=True)
    section = params(max_steps=2) | yaml.safe_load(settings)
    (project / "params.yaml").write_text(yaml.safe_dump({"train": section}), encoding="utf-8")

    said = run(project, PYTHONPATH=str(code))

    assert "step 2/2" in said
    curve = (project / "reports/curves/learning_rate.tsv").read_text(encoding="utf-8").splitlines()
    assert curve == ["step\tsgd", "1\t0.05", "2\t0.1"]
    loss = (project / "reports/curves/training_loss.tsv").read_text(encoding="utf-8").splitlines()
    assert len(loss) == 3
