"""Passwords planted wherever a user may have one: in nothing that a run, a sweep and a publication write or print."""

import base64
import gzip
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.flows.small_pipeline import environment, git, make_pipeline
from tests.small_project import FILES_SOURCE, PARROTFLOW, SECTIONS, function_text, run_module, write_params

pytestmark = pytest.mark.acceptance


ROWS = {"kind": "files", "text": ["content"], "fields": {"source": None, "path": None, "license": None}}

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


class AsksForALogin(http.server.BaseHTTPRequestHandler):
    """Serves rows to the user of netrc alone."""

    def do_GET(self) -> None:
        login = base64.b64encode(f"bob:{planted('netrc')}".encode()).decode()
        known = self.headers.get("Authorization") == f"Basic {login}"
        body = "".join(json.dumps({"content": function_text(number)}) + "\n" for number in range(100, 140)).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), AsksForALogin) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{running.server_port}"
        running.shutdown()


def project(folder: Path, url: str) -> Path:
    """The whole pipeline with rows of a server among its sources, and passwords in the remotes of git and DVC."""
    make_pipeline(folder, documents=10)
    rows = FILES_SOURCE | ROWS | {"globs": [url], "name": "rows"}
    write_params(
        folder,
        *SECTIONS,
        train__max_steps=4,
        collect__sources=[FILES_SOURCE, rows],
        card__describes=["mine", "rows"],
        publish__gate__allow_worse=True,
    )
    (folder / "experiments").mkdir()
    (folder / "experiments/shares.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "with rows")
    git(folder, "remote", "add", "origin", f"https://bob:{planted('git')}@127.0.0.1:9/name.git")
    (folder / ".dvc/config.local").write_text(
        f"[core]\n    remote = store\n['remote \"store\"']\n    url = https://bob:{planted('dvc-url')}@127.0.0.1:9/x\n"
        f"    password = {planted('dvc')}\n"
    )
    return folder


def said(folder: Path, *arguments: str) -> str:
    """What a command of parrotflow prints."""
    own = environment(folder, **VARIABLES, NETRC=str(folder.parent / "netrc"))
    done = run_module(PARROTFLOW, arguments, folder, own, stderr=subprocess.STDOUT)
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


def test_no_password_is_in_what_a_run_a_sweep_and_a_publication_write(tmp_path: Path, server: str) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login bob password {planted('netrc')}\n")
    netrc.chmod(0o600)
    folder = project(tmp_path / "project", f"http://{server}/rows.jsonl")

    printed = said(folder, "run") + said(folder, "sweep", "shares") + said(folder, "published", "list")

    assert (folder / "published/tiny/main/record/inputs.json").exists()
    assert "rows" in (folder / "published/tiny/main/record/inputs.json").read_text()
    assert (folder / "experiments/shares/tables/main.md").exists()
    secret = "pLaNtEd"
    assert written_with(secret, folder) == []
    assert secret not in printed
