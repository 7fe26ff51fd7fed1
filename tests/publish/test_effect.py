"""Publishing is an effect, not a result: driven by DVC, with the stage of the real dvc.yaml."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.plan.graph import make_plan
from stages.runtime.errors import EXIT_REFUSED
from stages.runtime.stage_code import code_of, code_path
from tests.small_project import DVC, ROOT, run_module
from tests.trained_project import write_sections

PUBLISHED = Path("published/tiny")
REFUSING = {"bits_per_byte_at_most": 0.1, "allow_worse": False, "tolerance": 0.0}


@pytest.fixture
def pipeline(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An evaluated project under git and DVC, with the stages card and publish, and two that made all else."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    stages["card"]["params"].remove("train")  # which this project does not have
    last = {name: stages[name] for name in ("card", "publish")}
    deps = {dep for stage in last.values() for dep in stage["deps"] if not dep.startswith(("data/code/", "stages/"))}
    made = [{out: {"cache": not out.startswith("reports/")}} for out in sorted(deps - {"data/card"})]
    first = {"code": {"cmd": "true", "outs": ["data/code"]}, "made": {"cmd": "true", "outs": made}}
    Path("dvc.yaml").write_text(yaml.safe_dump({"stages": first | last}))
    Path("dvc.lock").unlink()
    Path("data/code").mkdir()
    for name in ("card", "publish", "train"):
        code_path(f"stages.{name}").write_text(code_of(f"stages.{name}").text)  # none of it is in this project
    (template,) = (Path(dep) for dep in stages["card"]["deps"] if dep.endswith(".jinja"))
    template.parent.mkdir(parents=True)
    shutil.copyfile(ROOT / template, template)
    Path("reports/curves").mkdir()
    Path("reports/curves/training_loss.tsv").write_text("step\ttraining_loss\n10\t6.5\n")
    Path(".gitignore").write_text("/published/\n/data/\n/model/\n.parrotflow/\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert dvc("commit", "-q", "-f", "code", "made").returncode == 0
    for command in ("git add -A", "git commit -qm inputs"):
        subprocess.run(command.split(), check=True)
    return project


def dvc(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module(DVC, arguments, Path.cwd())


def reproduce() -> subprocess.CompletedProcess[str]:
    result = dvc("repro", "publish")
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def describe(description: str) -> None:
    write_sections(Path(), card__description=description)


def receipt() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((PUBLISHED / "receipt.json").read_text())
    return result


def state() -> str:
    """What the plan says of the stage publish."""
    return next(stage.state for stage in make_plan(["publish"]) if stage.name == "publish")


def require_agreement(description: str) -> None:
    """The receipt, main and what was asked for are the same; and every command says that nothing is left to do."""
    assert (PUBLISHED / "main").readlink().name == receipt()["revision"]
    assert f"\n{description}\n" in (PUBLISHED / "main/README.md").read_text()
    assert "didn't change, skipping" in reproduce().stdout
    assert state() == "up to date"


def test_main_and_the_receipt_follow_what_is_asked_for_also_back_to_an_earlier_revision(pipeline: Path) -> None:
    for description in ("AAA", "BBB", "AAA"):
        describe(description)
        assert state() != "up to date"

        reproduce()

        require_agreement(description)


def test_a_publication_is_made_again_after_it_was_deleted_and_anew_after_a_score_changed(pipeline: Path) -> None:
    describe("AAA")
    reproduce()
    first = receipt()
    shutil.rmtree(PUBLISHED)
    assert state() != "up to date"

    reproduce()

    assert receipt() == first
    require_agreement("AAA")
    report = Path("reports/score.json")
    report.write_text(report.read_text() + "\n")
    assert state() != "up to date"


def test_an_experiment_publishes_nothing_until_it_is_applied(pipeline: Path) -> None:
    describe("AAA")
    reproduce()
    before = receipt()

    result = dvc("exp", "run", "--temp", "-n", "trial", "-S", "card.description=BBB")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "not published: this is an experiment's temporary workspace" in result.stdout
    assert receipt() == before
    assert (PUBLISHED / "main").readlink().name == before["revision"]

    assert dvc("exp", "apply", "trial").returncode == 0
    assert state() != "up to date"
    reproduce()
    require_agreement("BBB")


def test_the_gate_holds_for_plain_dvc_and_opens_when_its_limit_is_raised(pipeline: Path) -> None:
    write_sections(pipeline, publish__gate=REFUSING)

    refused = dvc("repro", "publish")

    assert refused.returncode != 0
    assert f"exited with {EXIT_REFUSED}" in refused.stderr
    assert "error: publish.gate.bits_per_byte_at_most = 0.1: the model has " in refused.stdout + refused.stderr
    assert not PUBLISHED.exists()

    write_sections(pipeline, publish__gate__bits_per_byte_at_most=100.0)
    reproduce()
    assert receipt()["destination"] == "folder"
