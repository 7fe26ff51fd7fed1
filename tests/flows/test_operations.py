"""Scheduled runs for which something fails: a remote, the machine, an override."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.operated import Operated
from tests.flows.test_pipeline import toy

pytestmark = pytest.mark.acceptance


STAGE = "stages:\n  slow: {cmd: touch slow.txt, outs: [slow.txt]}\n"

SLOW = """\
stages:
  first: {cmd: echo 1 > first.txt, outs: [first.txt]}
  slow: {cmd: sleep 600 && touch slow.txt, outs: [slow.txt]}
"""


@pytest.fixture
def server(shared_server: Operated) -> Operated:
    return shared_server


def wait_for(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    pytest.fail(f"ended before it said `{words}`")


def scheduled(server: Operated, folder: Path, **arguments: object) -> "subprocess.Popen[str]":
    """One run of a deployment's flow, as a worker starts it: in a process of its own."""
    call = f"asyncio.run(scheduled(**{arguments!r}, return_state=True))"
    code = f"import asyncio; from flows.scheduled import scheduled; end = {call}; print('END', end.name, end.message)"
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
    folder = operated_toy(tmp_path / "toy", STAGE, str(tmp_path / "file" / "store"))

    said, _ = scheduled(server, folder, retry_delays_seconds=[0.0, 0.0]).communicate()

    assert "END NotPushed" in said
    failed = {"name": {"like_": "push-"}, "state": {"type": {"any_": ["FAILED"]}}}
    assert [task["run_count"] for task in server.post("task_runs/filter", task_runs=failed)] == [3]
    assert b"slow.txt" in subprocess.check_output(["git", "show", "results:dvc.lock"], cwd=folder)

    subprocess.run(["git", "checkout", "-q", "results"], cwd=folder, check=True)
    (tmp_path / "file").unlink()
    said, _ = scheduled(server, folder, branch="results", results_branch="next").communicate()
    assert "END Completed" in said
    assert list((tmp_path / "file" / "store").rglob("*"))


def test_a_killed_run_is_taken_up_by_the_next(server: Operated, tmp_path: Path) -> None:
    folder = operated_toy(tmp_path / "toy", SLOW, str(tmp_path / "store"))
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
    folder = operated_toy(tmp_path / "toy", STAGE, str(tmp_path / "store"))
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "small.yaml").write_text("{}\n")
    commit_all(folder)

    said, _ = scheduled(server, folder, overrides=["nonesuch.key=1"]).communicate()

    assert "END Failed" in said
    assert "nonesuch" in said
    assert b"results" not in subprocess.check_output(["git", "branch", "--all"], cwd=folder)
