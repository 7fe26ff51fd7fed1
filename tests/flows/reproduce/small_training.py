"""A project of three small programs that trains in a second: its weights depend on threads, parameters and data."""

import math
import shutil
import subprocess
from pathlib import Path

from tests.flows.toy import git, repro
from tests.small_project import ROOT, make_repository

DVC_YAML = """\
stages:
  code:
    cmd: python -m stages.code
    deps: [stages, requirements.lock]
    outs: [data/code]
  data:
    cmd: python data.py
    deps: [corpus.txt, data.py]
    outs: [data/numbers.txt]
  train:
    cmd: python -m stages.train
    deps: [data/numbers.txt, data/code/train.json]
    params: [steps]
    outs: [model]
    plots: [reports/curves: {cache: false}]
  evaluate:
    cmd: python evaluate.py
    deps: [model, evaluate.py]
    metrics: [reports/evaluate.json: {cache: false}]
"""

DATA = """\
from pathlib import Path

Path("data").mkdir(exist_ok=True)
Path("data/numbers.txt").write_text(Path("corpus.txt").read_text().replace(" ", "\\n"))
"""

TRAIN = """\
# Sums in as many parts as there are threads, as real kernels do: another number rounds otherwise.
import hashlib, json, os, platform, time
from pathlib import Path
import numpy as np, yaml
from safetensors.numpy import save_file

if hold := os.environ.get("HOLD"):
    Path(hold + ".reached").touch()
    while Path(hold).exists():
        time.sleep(0.05)
numbers = np.loadtxt("data/numbers.txt", dtype=np.float32)
threads = int(os.environ.get("OTHER_MACHINE") or os.environ.get("OMP_NUM_THREADS", "2"))
weights = np.zeros(8, np.float32)
Path("model").mkdir()
Path("reports/curves").mkdir(parents=True)
with open("reports/curves/loss.tsv", "w") as curve:
    print("step", "loss", sep="\\t", file=curve)
    for step in range(1, yaml.safe_load(open("params.yaml"))["steps"] + 1):
        parts = [np.cumsum(part * np.float32(step))[-1] for part in np.array_split(numbers, threads)]
        weights[step % 8] += np.float32(sum(parts, np.float32(0)))
        print(step, repr(float(weights.sum())), sep="\\t", file=curve)
save_file({"bias": weights[:2], "kernel": weights[2:]}, "model/model.safetensors")
Path("model/config.json").write_text("{}")
session = dict(
    first_step=1, last_step=9, device="a processor", device_type="cpu", cpu_flags=[], cpu_capability="DEFAULT",
    isa_limits={}, processes=1, machines=1, threads_per_process=threads, precision="fp32", compiled=False,
    micro_batch_size=1, gradient_accumulation_steps=1, distributed="none", environment={}, launch=None,
    versions={"numpy": np.__version__, "python": platform.python_version()},
)
sha256 = hashlib.sha256(Path("model/model.safetensors").read_bytes()).hexdigest()
execution = dict(weights_sha256=sha256, fingerprint="f" * 64, sessions=[session], checkpoints={"4": "a", "8": "b"})
Path("reports/train_execution.json").write_text(json.dumps(execution))
"""

EVALUATE = """\
import hashlib, json
from pathlib import Path
from safetensors.numpy import load_file

weights = load_file("model/model.safetensors")
value = 1.5 + float(abs(weights["kernel"]).sum()) % 1e-3
ends = [value - 0.1, value + 0.1]
intervals = dict(
    bits_per_byte=ends, loss=ends, perplexity=ends, bits_per_byte_per_source={}, bits_per_byte_per_length={}
)
a_set = dict(path="data", documents_sha256="d", documents_per_source={}, documents_per_length={})
receipt = dict(convention="", sets={"validation": a_set}, models={}, versions={})
receipt |= dict(bootstrap_resamples=1, bootstrap_seed=0)
report = dict(
    bits_per_byte=value, loss=value, perplexity=value, interval_95=intervals, documents=3, tokens=9, bytes=9,
    bits_per_byte_per_source={}, bits_per_byte_per_length={}, compared={}, sets={},
    lost_share=0.0, receipt=receipt,
)
Path("reports/evaluate.json").write_text(json.dumps(report))
"""


def make_training(folder: Path) -> Path:
    """The project, committed and run once."""
    folder.mkdir(parents=True)
    files = {"dvc.yaml": DVC_YAML, "data.py": DATA, "evaluate.py": EVALUATE, ".dvcignore": "__pycache__\n"}
    files |= {"corpus.txt": " ".join(f"{math.sin(number):.9f}" for number in range(999)), "params.yaml": "steps: 9\n"}
    files |= {name: (ROOT / name).read_text() for name in ("requirements.lock", "pyproject.toml")}
    files |= {"notes.txt": "of the commit", ".gitignore": "__pycache__/\n/code/\n/data/\n/model/\n/reports/\n"}
    files["stages/train/__main__.py"] = TRAIN
    for name in ("stages/code", "stages/runtime"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "stages/train").mkdir()
    make_repository(folder)
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    repro(folder)
    return folder


def commit(folder: Path) -> str:
    """The commit that is checked out."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()
