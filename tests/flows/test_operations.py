"""What an operator meets: servers, remotes, disks and clocks that fail."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from flows.plan.graph import make_plan
from tests.flows.operated import Operated, operated
from tests.flows.test_pipeline import run, toy
from tests.flows.toy import make_toy, repro

pytestmark = pytest.mark.acceptance


SLOW = "stages:\n  slow: {cmd: sleep 600 && touch slow.txt, outs: [slow.txt]}\n"
EIGHT_SECONDS = "stages:\n  slow: {cmd: sleep 8 && touch slow.txt, outs: [slow.txt]}\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    with operated(tmp_path_factory.mktemp("operated")) as running:
        yield running


def start(server: Operated, folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "flows.pipeline"]
    return subprocess.Popen(
        command, cwd=folder, env=server.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    pytest.fail(f"ended before it said `{words}`")


def test_a_locked_database_holds_a_run_up_and_loses_nothing(server: Operated, tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", EIGHT_SECONDS.replace("sleep 8", "sleep 2"))
    process = start(server, folder)
    wait_for(process, "started")

    database = sqlite3.connect(Path(server.environment["PREFECT_HOME"]) / "prefect.db", timeout=30)
    database.execute("BEGIN EXCLUSIVE")
    time.sleep(5)
    database.rollback()
    database.close()

    said, _ = process.communicate()
    assert process.returncode == 0, said


def scheduled(server: Operated, folder: Path, flow: str = "scheduled", **arguments: object) -> "subprocess.Popen[str]":
    """One run of a deployment's flow, as a worker starts it: in a process of its own."""
    call = f"asyncio.run({flow}(**{arguments!r}, return_state=True))"
    code = f"import asyncio; from flows.scheduled import {flow}; end = {call}; print('END', end.name, end.message)"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env=server.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def operated_toy(folder: Path, dvc_yaml: str, remote: str) -> Path:
    """A toy with a first commit on `main` and a DVC remote."""
    made = toy(folder, dvc_yaml)
    subprocess.run([sys.executable, "-m", "dvc", "remote", "add", "-q", "-d", "store", remote], cwd=made, check=True)
    subprocess.run(["git", "checkout", "-q", "-B", "main"], cwd=made, check=True)
    commit_all(made)
    return made


def commit_all(folder: Path) -> None:
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    commit = ["git", "commit", "-qm", "change"]
    subprocess.run(commit, cwd=folder, check=True)


def test_a_remote_that_is_down_is_tried_again_and_reported_and_the_run_succeeds(
    server: Operated, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    folder = operated_toy(tmp_path / "toy", EIGHT_SECONDS.replace("sleep 8", "true"), str(tmp_path / "file" / "store"))

    said, _ = scheduled(server, folder, retry_delays_seconds=[0.0, 0.0]).communicate()

    assert "END NotPushed" in said
    run_id = server.flow_runs("scheduled")[-1]["id"]
    tasks = server.post("task_runs/filter", flow_runs={"id": {"any_": [run_id]}})
    push = next(task for task in tasks if task["name"].startswith("push"))
    assert (push["state_type"], push["run_count"]) == ("FAILED", 3)
    assert b"slow.txt" in subprocess.check_output(["git", "show", "results:dvc.lock"], cwd=folder)

    subprocess.run(["git", "checkout", "-q", "results"], cwd=folder, check=True)
    (tmp_path / "file").unlink()
    said, _ = scheduled(server, folder, branch="results", results_branch="next").communicate()
    assert "END Completed" in said
    assert list((tmp_path / "file" / "store").rglob("*"))


def test_a_killed_run_is_taken_up_by_the_next(server: Operated, tmp_path: Path) -> None:
    two = "  first: {cmd: echo 1 > first.txt, outs: [first.txt]}\n"
    folder = operated_toy(tmp_path / "toy", SLOW.replace("stages:\n", "stages:\n" + two), str(tmp_path / "store"))
    process = scheduled(server, folder)
    wait_for(process, "slow │ started")
    process.kill()
    process.wait()
    for found in Path("/proc").glob("[0-9]*"):
        if is_in(found, folder):
            os.kill(int(found.name), signal.SIGKILL)
    (folder / "dvc.yaml").write_text((folder / "dvc.yaml").read_text().replace("sleep 600", "sleep 0"))
    commit_all(folder)

    said, _ = scheduled(server, folder).communicate()

    assert "END Completed" in said, said
    assert b"slow.txt" in subprocess.check_output(["git", "show", "results:dvc.lock"], cwd=folder)


def is_in(process: Path, folder: Path) -> bool:
    try:
        return (process / "cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


def test_overrides_are_checked_before_anything_runs_and_go_to_a_branch_of_their_own(
    server: Operated, tmp_path: Path
) -> None:
    folder = operated_toy(tmp_path / "toy", EIGHT_SECONDS.replace("sleep 8", "true"), str(tmp_path / "store"))
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "small.yaml").write_text("{}\n")
    commit_all(folder)

    said, _ = scheduled(server, folder, overrides=["nonesuch.key=1"]).communicate()

    assert "END Failed" in said
    assert "nonesuch" in said
    assert b"results" not in subprocess.check_output(["git", "branch", "--all"], cwd=folder)


def test_a_clock_that_jumps_reruns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    monkeypatch.chdir(folder)
    then = time.time() - 365 * 86400
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            os.utime(path, (then, then))

    assert make_plan().to_do == []


def test_a_remote_on_s3_gives_another_clone_every_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    store.start()
    try:
        host, port = store.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="results")
        folder = operated_toy(tmp_path / "toy", EIGHT_SECONDS.replace("sleep 8", "date +%N > slow.txt"), "s3://results")
        modify = [sys.executable, "-m", "dvc", "remote", "modify", "store", "endpointurl", endpoint]
        subprocess.run(modify, cwd=folder, check=True)
        assert run(folder).returncode == 0
        commit_all(folder)
        subprocess.run([sys.executable, "-m", "dvc", "push", "-q", "--run-cache"], cwd=folder, check=True)
        subprocess.run(["git", "clone", "-q", str(folder), str(tmp_path / "second")], check=True)

        command = [sys.executable, "-m", "flows.cli", "run", "--pull"]
        result = subprocess.run(command, cwd=tmp_path / "second", check=True, capture_output=True, text=True)
    finally:
        store.stop()

    assert "restored" in result.stdout
    assert (tmp_path / "second" / "slow.txt").read_text() == (folder / "slow.txt").read_text()
