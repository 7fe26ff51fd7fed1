"""A toy experiment in a repository of git and DVC with a commit: three stages, of which only the last differs."""

import subprocess
from pathlib import Path

from tests.flows.experiments.small_experiment import EXPERIMENT, write_experiment
from tests.flows.test_pipeline import environment
from tests.flows.toy import commit
from tests.small_project import PARROTFLOW, make_repository, run_module

TRAIN = """\
import json, os, time, yaml
params = yaml.safe_load(open("params.yaml"))["model"]
time.sleep(params.get("seconds", 0))
if params["seed"] == 13 and not os.path.exists(os.environ.get("LUCK", "")):
    raise SystemExit("error: no luck")
loss = 4.0 - params["width"] / 8 - (params["name"] == "b") / 4 + params["seed"] / 64
json.dump({"loss": loss, "interval": [loss - 1, loss + 1], "cost": params["width"]}, open("scores.json", "w"))
open("curve.tsv", "w").write("step\\tloss\\n1\\t9.0\\n2\\t%s\\n" % loss)
"""

DVC_YAML = """\
stages:
  collect:
    cmd: cat source.txt source.txt > documents.txt
    deps: [source.txt]
    outs: [documents.txt]
  tokenize:
    cmd: wc -c documents.txt > tokens.txt
    deps: [documents.txt]
    params: [other]
    outs: [tokens.txt]
  train:
    cmd: python train.py
    params: [model]
    deps: [train.py, tokens.txt]
    metrics: [scores.json: {cache: false}]
    plots: [curve.tsv]
  publish:
    cmd: cp scores.json published.json
    deps: [scores.json]
    outs: [published.json]
"""

RECIPES = {"recipe": {"a": {"model.name": "a"}, "b": {"model.name": "b"}}}
TWO_CELLS = {
    "axes": RECIPES,
    "seeds": {"keys": ["model.seed"], "values": [0]},
    "tables": {"main": EXPERIMENT["tables"]["main"] | {"rows": ["recipe"]}},
    "figures": {},
    "fits": {},
    "claims": [
        {
            "says": "b is better.",
            "holds_if": [{"difference": "loss", "levels": {"recipe": ["b", "a"]}, "value": {"below": 0}}],
        }
    ],
}


def make_sweep(folder: Path, dvc_yaml: str = DVC_YAML, **changes: object) -> Path:
    """Write the project and commit it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_experiment(folder, **changes)
    for name, text in (("train.py", TRAIN), ("dvc.yaml", dvc_yaml), ("source.txt", "0123456789\n")):
        (folder / name).write_text(text)
    make_repository(folder)
    (folder / ".gitignore").write_text("/.parrotflow/\n/report.html\n")
    commit(folder)
    return folder


def sweep(folder: Path, *options: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """`parrotflow sweep toy`; what it says is kept beside the folder."""
    own = environment(folder.parent) | variables
    done = run_module(PARROTFLOW, ["sweep", "toy", *options], folder, own, stderr=subprocess.STDOUT)
    if "--dry" not in options:
        said_of(folder, done.stdout)
    return done


def said_of(folder: Path, more: str = "") -> str:
    """What all sweeps of a folder have said so far."""
    path = folder.with_suffix(".said")
    with path.open("a", encoding="utf-8") as file:
        file.write(more)
    return path.read_text(encoding="utf-8")
