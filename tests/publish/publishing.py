"""Publishing with all that comes before it in the pipeline."""

import logging
from pathlib import Path
from typing import Any

import yaml
from dvc.repo import Repo

from stages.card.__main__ import main as card
from stages.formats.evaluation.generation import Generation
from stages.formats.evaluation.report import Evaluation
from stages.formats.evaluation.scores import HarnessReport
from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json, write_json
from stages.publish.__main__ import main as publish
from tests.trained_project import write_model

STAGES: dict[str, dict[str, Any]] = {
    "clean": {"deps": ["corpus"], "params": ["collect", "clean"], "outs": ["data/clean", "reports/clean.json"]},
    "tokenize": {"deps": ["data/clean"], "outs": ["data/tokens"]},
    "train": {"deps": ["data/tokens", "deploy/launch/cpu.yaml"], "outs": ["model", "reports/train.json"]},
    "evaluate": {"deps": ["model", "evaluation/problems"], "outs": ["reports/evaluate.json"]},
    "yardstick": {"deps": ["data/clean"], "outs": ["reports/yardstick.json"]},
    "other": {"deps": ["model"], "outs": ["data/other"]},
    "card": {
        "deps": ["model", "reports/evaluate.json", "reports/yardstick.json"],
        "params": ["card"],
        "outs": ["data/card"],
    },
}
DEPS = ["data/card", "model", "data/tokens", "reports/evaluate.json"]


def write_pipeline() -> None:
    """A dvc.yaml by which DVC records what there is; its commands do nothing."""
    stages = {
        name: {"cmd": "true"} | stage | {"outs": [{out: {"cache": False}} for out in stage["outs"]]}
        for name, stage in STAGES.items()
    }
    publish = {"publish": {"cmd": "true", "deps": DEPS}}
    Path("dvc.yaml").write_text(yaml.safe_dump({"stages": stages | publish}))


def record() -> None:
    """Write dvc.lock as if the stages before publish had just made what is there."""
    logging.getLogger("dvc").setLevel(logging.ERROR)
    with Repo() as repo:
        for stage in STAGES:
            repo.commit(stage, force=True)


def train_anew(seed: int) -> None:
    """Another model, and the evaluations' reports as if they had measured it."""
    before = weights_sha256()
    write_model(Path(), seed)
    for report in (Evaluation.path, Generation.path, HarnessReport.path):
        report.write_text(report.read_text().replace(before, weights_sha256()))


def main() -> None:
    """Write the card, record it, and publish."""
    card()
    record()
    publish()


def publish_with(bits_per_byte: float, seed: int = 0) -> str:
    """Publish another model with that evaluation; the revision's name."""
    train_anew(seed)
    report = Path("reports/evaluate.json")
    write_json(report, read_json(report) | {"bits_per_byte": bits_per_byte})
    main()
    return Path("published/tiny/main").resolve().name
