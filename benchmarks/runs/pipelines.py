"""Pipelines of shell commands in repositories of their own, run by this project's flow and by DVC."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PARROTFLOW = [sys.executable, "-m", "flows.cli", "run"]
UI = [sys.executable, "-m", "flows.cli", "ui"]
REPRO = [sys.executable, "-m", "dvc", "repro", "--quiet"]


def make_pipeline(folder: Path, dvc_yaml: str) -> Path:
    """Write a dvc.yaml into a new git and DVC repository. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dvc.yaml").write_text(dvc_yaml, encoding="utf-8")
    (folder / "params.yaml").write_text("{}\n", encoding="utf-8")
    (folder / ".gitignore").write_text("/.parrotflow/\n", encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=folder, check=True)
    return folder


def environment() -> dict[str, str]:
    """What the commands need besides the machine's own environment."""
    return {"PYTHONPATH": str(ROOT), "PARROTFLOW_STAGES_AT_ONCE": "2", "DVC_NO_ANALYTICS": "1"}
