"""Scheduled runs for which something fails: a remote, the machine, an override."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.flows.operated import Operated
from tests.flows.test_pipeline import toy
from tests.flows.toy import commit, dvc, git

pytestmark = pytest.mark.acceptance


STAGE = "stages:\n  slow: {cmd: touch slow.txt, outs: [slow.txt]}\n"


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
    dvc(made, "remote", "add", "-q", "-d", "store", remote)
    git(made, "checkout", "-q", "-B", "main")
    commit(made)
    return made


def test_a_remote_that_is_down_is_tried_again_and_reported_and_the_run_succeeds(
    shared_server: Operated, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    folder = operated_toy(tmp_path / "toy", STAGE, str(tmp_path / "file" / "store"))

    began = datetime.now(UTC).isoformat()  # the test below has a failed push on this server too
    said, _ = scheduled(shared_server, folder, retry_delays_seconds=[0.0, 0.0]).communicate()

    assert "END NotPushed" in said
    failed = {"name": {"any_": ["push"]}, "state": {"type": {"any_": ["FAILED"]}}}
    tasks = shared_server.post("task_runs/filter", task_runs=failed)
    assert [task["run_count"] for task in tasks if task["start_time"] >= began] == [3]
    assert "slow.txt" in git(folder, "show", "results:dvc.lock")

    git(folder, "checkout", "-q", "results")
    (tmp_path / "file").unlink()
    said, _ = scheduled(shared_server, folder, branch="results", results_branch="next").communicate()
    assert "END Completed" in said
    assert list((tmp_path / "file" / "store").rglob("*"))


def test_a_refusal_stays_one_if_the_remote_is_down_too(shared_server: Operated, tmp_path: Path) -> None:
    """An automation waits for its name."""
    (tmp_path / "file").write_text("no folder")
    refusing = "  refuse: {cmd: exit 77, deps: [slow.txt], outs: [never.txt]}\n"
    folder = operated_toy(tmp_path / "toy", STAGE + refusing, str(tmp_path / "file" / "store"))

    said, _ = scheduled(shared_server, folder, retry_delays_seconds=[]).communicate()

    assert "END Refused" in said


def test_overrides_are_checked_before_anything_runs_and_go_to_a_branch_of_their_own(
    shared_server: Operated, tmp_path: Path
) -> None:
    folder = operated_toy(tmp_path / "toy", STAGE, str(tmp_path / "store"))
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "small.yaml").write_text("{}\n")
    commit(folder)

    said, _ = scheduled(shared_server, folder, overrides=["nonesuch.key=1"]).communicate()

    assert "END Failed" in said
    assert "nonesuch" in said
    assert b"results" not in subprocess.check_output(["git", "branch", "--all"], cwd=folder)
