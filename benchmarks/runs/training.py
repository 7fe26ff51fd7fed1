"""Runs of the training stage in folders of their own, on the project's own tokens."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from flows.project.compose import composed_text
from stages.train.params import TrainParams

ROOT = Path(__file__).parents[2]

TINY_MODEL: dict[str, Any] = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 64,
    "n_positions": 64,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
"""For benchmarks of what surrounds the arithmetic."""


MINI = "GPT-2 of 4.3 million parameters"
"""The model of the preset gpt2_mini, as figures on record name it."""


DEFAULT = "a Qwen3-like transformer of 1.1 million parameters"
"""The model of params.yaml as it is shipped."""


def default_section() -> dict[str, Any]:
    """The `train` section of params.yaml."""
    params: dict[str, dict[str, Any]]
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    return params["train"]


def mini_section() -> dict[str, Any]:
    """The same with the preset gpt2_mini."""
    params: dict[str, dict[str, Any]]
    params = yaml.safe_load(composed_text(["model=gpt2_mini"], ROOT / "params.yaml", ROOT / "conf"))
    return params["train"]


def mini_params() -> TrainParams:
    """The same, validated."""
    return TrainParams.model_validate(mini_section())


def training_project(folder: Path, **changes: Any) -> Path:
    """A folder with the project's tokens and gpt2_mini's `train` section with some values changed. Returns it."""
    if not (ROOT / "data/tokens/train/manifest.json").exists():
        raise SystemExit("data/tokens: nothing there; run `dvc repro tokenize` first")
    folder.mkdir(parents=True)
    for name in ("data", "launch", "requirements.lock"):
        (folder / name).symlink_to(ROOT / name)
    values = mini_section()
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        section = values
        for part in path:
            section = section[part]
        section[last] = value
    (folder / "params.yaml").write_text(yaml.safe_dump({"train": values}), encoding="utf-8")
    return folder


def start_training(folder: Path, **variables: str) -> "subprocess.Popen[bytes]":
    """Start the stage; what it says goes to `log`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PARROTFLOW_LAUNCH": "cpu", **variables}
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-m", "stages.train"]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)


def run_training(folder: Path, **variables: str) -> None:
    """Run the stage to its end."""
    if code := start_training(folder, **variables).wait():
        raise SystemExit(f"training ended with {code}: {(folder / 'log').read_text(encoding='utf-8')[-2000:]}")
