"""A toy pipeline whose training writes its curve as it goes, in a repository with a commit."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.flows.search.small_search import PARAMS, write_search
from tests.small_project import make_repository

TRAIN = """\
import json, math, pathlib, time, yaml
model = yaml.safe_load(open("params.yaml"))["model"]
if model["width"] == 64:
    raise SystemExit("error: no room for 64")
loss = 1.0 + abs(math.log10(model["rate"] / 0.03))
curves = pathlib.Path(".parrotflow/checkpoints/toy/curves")
curves.mkdir(parents=True, exist_ok=True)
lines = ["step\\tloss\\n"]
for step in range(1, model["steps"] + 1):
    time.sleep(model.get("seconds", 0))
    lines.append(f"{step}\\t{loss + 2 / step}\\n")
    (curves / "curve.tsv").write_text("".join(lines))
open("curve.tsv", "w").write("".join(lines))
json.dump({"loss": loss}, open("scores.json", "w"))
"""

DVC_YAML = """\
stages:
  data:
    cmd: echo text > data.txt
    outs: [data.txt]
  train:
    cmd: python train.py
    params: [model]
    deps: [train.py, data.txt]
    metrics: [scores.json: {cache: false}]
    plots: [curve.tsv]
"""


def make_toy_training(folder: Path, seconds: float, **changes: Any) -> Path:
    """Write and commit the project; each step takes so long."""
    folder.mkdir()
    write_search(folder, **changes)
    params = PARAMS | {"model": PARAMS["model"] | {"seconds": seconds}}
    for name, text in (("train.py", TRAIN), ("dvc.yaml", DVC_YAML), ("params.yaml", yaml.safe_dump(params))):
        (folder / name).write_text(text)
    make_repository(folder)
    (folder / ".gitignore").write_text("/.parrotflow/\n")
    for command in (("add", "-A"), ("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "start")):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def command(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """`parrotflow ...` in the project, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *words],
        cwd=folder,
        env={**os.environ, "HOME": str(folder.parent), "GIT_CONFIG_GLOBAL": "/dev/null"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
