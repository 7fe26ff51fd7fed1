"""The data stages as processes of their own, in a project whose corpus is a folder."""

import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measurements import ROOT
from stages.runtime.section import read_params_file


def params_of_corpus(folder: str, path: str | None = None) -> dict[str, Any]:
    """The project's parameters with a folder as their only source; `path` is the field of its rows with their paths."""
    params = read_params_file(ROOT / "params.yaml")
    origin = {"name": "corpus", "revision": "", "license": "", "share": 1.0, "max_bytes": None}
    rows = {"text": ["text"], "fields": {"source": None, "path": path, "license": None}, "part_bytes": None}
    params["collect"]["sources"] = [{"kind": "files", "globs": [folder], **origin, **rows}]
    params["clean"]["split"] = {"by": "document", "validation_sources": [], "validation_share": 0.02}
    return params


def write_settings(project: Path, params: dict[str, Any]) -> None:
    """Write what the stages read besides the corpus."""
    (project / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    shutil.copyfile(ROOT / "requirements.lock", project / "requirements.lock")


def cpu_seconds(command: Sequence[str], project: Path, environment: Mapping[str, str]) -> float:
    """CPU seconds of a process and those that it waited for. Raises SystemExit if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
