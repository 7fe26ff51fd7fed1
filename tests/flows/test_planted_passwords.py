"""Passwords planted wherever a user may have one: in nothing that a run, a sweep and a publication write or print."""

import gzip
import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.flows.small_pipeline import environment, make_pipeline
from tests.flows.toy import git
from tests.small_project import PARROTFLOW, run_module

pytestmark = pytest.mark.acceptance


EXPERIMENT = {
    "question": "Do more held-out documents change anything?",
    "targets": ["clean"],
    "axes": {"share": {"param": "clean.split.validation_share", "values": [0.3, 0.4]}},
    "seeds": {"keys": ["clean.seed"], "values": [0]},
    "metrics": {"kept": {"label": "kept", "unit": "", "decimals": 0, "source": "reports/clean.json:documents"}},
    "tables": {"main": {"caption": "Documents.", "rows": ["share"], "metrics": ["kept"]}},
}


def planted(name: str) -> str:
    """A password that is nowhere else; a name for each place."""
    return f"pLaNtEd-{name}-0123456789"


VARIABLES = {
    "HF_TOKEN": planted("hub"),
    "WANDB_API_KEY": planted("tracker"),
    "MY_SERVICE_PASSWORD": planted("variable"),
    "FSSPEC_S3_SECRET": planted("fsspec"),
}


def project(folder: Path) -> Path:
    """The whole pipeline, with passwords in the remotes of git and DVC."""
    make_pipeline(folder, documents=10)
    (folder / "experiments").mkdir()
    (folder / "experiments/shares.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "an experiment")
    git(folder, "remote", "add", "origin", f"https://bob:{planted('git')}@127.0.0.1:9/name.git")
    (folder / ".dvc/config.local").write_text(
        f"[core]\n    remote = store\n['remote \"store\"']\n    url = https://bob:{planted('dvc-url')}@127.0.0.1:9/x\n"
        f"    password = {planted('dvc')}\n"
    )
    return folder


def said(folder: Path, *arguments: str) -> str:
    """What a command of parrotflow prints."""
    done = run_module(PARROTFLOW, arguments, folder, environment(folder, **VARIABLES), stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


def contents(file: Path) -> bytes:
    """What a file holds, decompressed."""
    data = file.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    if data.startswith(b"PAR1"):
        return str(pq.read_table(file).to_pydict()).encode()
    return data


def written_with(secret: str, folder: Path) -> list[str]:
    """The files that hold a text, except those in which it was planted."""
    where_planted = {folder / ".git/config", folder / ".dvc/config.local"}
    files = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    files = (file for file in files if file.is_file() and not file.is_symlink() and file not in where_planted)
    return [str(file.relative_to(folder)) for file in files if secret.encode() in contents(file)]


def test_no_password_is_in_what_a_run_a_sweep_and_a_publication_write(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")

    printed = said(folder, "run") + said(folder, "sweep", "shares") + said(folder, "published", "list")

    assert (folder / "published/tiny/main/provenance.json").exists()
    assert (folder / "experiments/shares/tables/main.md").exists()
    secret = "pLaNtEd"
    assert written_with(secret, folder) == []
    assert secret not in printed
