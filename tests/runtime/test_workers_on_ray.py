"""The same functions on a real Ray cluster of this machine, started and stopped here."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.runtime.errors import UserError
from stages.runtime.workers import map_shards
from tests.runtime.test_workers import refuse
from tests.small_project import ROOT, folder_bytes, write_corpus, write_project
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance


needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray (optional) is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster with two workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray = str(Path(sys.executable).with_name("ray"))
    command = [ray, "start", "--block", "--head", f"--port={port}", "--num-cpus=2"]
    command += ["--include-dashboard=false", "--node-ip-address=127.0.0.1", "--object-store-memory=80000000"]
    command += ["--disable-usage-stats"]
    head = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: listens(port))
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        head.wait()


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@needs_ray
def test_an_error_on_the_cluster_is_raised_here_as_it_was_there(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster)

    with pytest.raises(UserError, match="shard 3 is damaged"):
        list(map_shards(refuse, range(8)))


@needs_ray
def test_one_process_two_processes_and_ray_give_the_same_bytes(cluster: str, tmp_path: Path) -> None:
    write_corpus(tmp_path, 20)
    duplicates = {"similarity": 0.85, "minimum_words": 5}
    write_project(tmp_path, clean__near_duplicates=duplicates)
    results = []
    for setting in ({"PARROTFLOW_WORKERS": "1"}, {"PARROTFLOW_WORKERS": "2"}, {"RAY_ADDRESS": cluster}):
        for stage in ("collect", "clean", "tokenizer", "tokenize"):
            environment = os.environ | {"PYTHONPATH": str(ROOT)} | setting
            subprocess.run([sys.executable, "-m", f"stages.{stage}"], cwd=tmp_path, env=environment, check=True)
        results.append(folder_bytes(tmp_path / "data") | folder_bytes(tmp_path / "reports"))
        shutil.rmtree(tmp_path / ".parrotflow")
        shutil.rmtree(tmp_path / "data")

    assert results[0] == results[1] == results[2]


@needs_ray
def test_an_address_without_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")

    with pytest.raises(UserError, match=r"RAY_ADDRESS=127\.0\.0\.1:1: no Ray cluster answers there"):
        list(map_shards(refuse, range(2)))
