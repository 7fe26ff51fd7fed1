"""deploy/node.sh on two nodes of one machine, with a real DVC and a pipeline of three short stages."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until, wait_until_ended

ROOT = Path(__file__).parents[2]

DVC = """
stages:
  tokenize: {cmd: echo 1 > tokens, outs: [tokens]}
  train: {cmd: python -m stages.train, deps: [tokens], outs: [model]}
  evaluate:
    cmd: python -c 'import signal; print(signal.getsignal(signal.SIGTERM))' > metrics
    deps: [model]
    outs: [metrics]
"""

TRAIN = """
import os, signal, sys, time
from pathlib import Path

signal.signal(signal.SIGTERM, lambda *_: (Path("saved-" + os.environ["RANK"]).touch(), sys.exit(75)))
me, other = (Path("here-" + rank) for rank in (os.environ["RANK"], "10"[int(os.environ["RANK"])]))
me.touch()
while not (other.exists() and Path("partner-may-finish").exists()):
    time.sleep(0.05)
if os.environ["RANK"] == "0":
    Path("model").write_text("trained")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "dvc.yaml").write_text(DVC)
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/train.py").write_text(TRAIN)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for command in ("init -q", "config core.check_update false"):
        subprocess.run([sys.executable, "-m", "dvc", *command.split()], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture
def started() -> Iterator[list["subprocess.Popen[str]"]]:
    nodes: list[subprocess.Popen[str]] = []
    yield nodes
    for node in nodes:
        if node.poll() is None:
            os.killpg(node.pid, signal.SIGKILL)


def start(folder: Path, rank: int, started: list["subprocess.Popen[str]"], run: str = "1") -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    node = subprocess.Popen(
        [str(ROOT / "deploy/node.sh"), str(rank), run],
        cwd=folder,
        env={
            "PATH": path,
            "PYTHONPATH": str(folder),
            "RANK": str(rank),
            "POLL_SECONDS": "0.2",
            "DVC_NO_ANALYTICS": "1",
        },
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started.append(node)
    return node


def until(folder: Path, *names: str) -> None:
    wait_until(lambda: all((folder / name).exists() for name in names))


def test_both_nodes_train_and_the_first_completes_the_pipeline(
    folder: Path, started: list["subprocess.Popen[str]"]
) -> None:
    second = start(folder, 1, started)
    first = start(folder, 0, started)
    until(folder, "here-0", "here-1")
    (folder / "partner-may-finish").touch()

    assert first.wait() == 0, first.communicate()[0]
    assert second.wait() == 0, second.communicate()[0]
    assert (folder / "model").read_text() == "trained"
    assert (folder / "metrics").read_text().strip() == "0"  # SIG_DFL: evaluate does not inherit an ignored SIGTERM


def test_the_other_node_ends_where_training_is_up_to_date(folder: Path, started: list["subprocess.Popen[str]"]) -> None:
    (folder / "partner-may-finish").touch()
    for node in [start(folder, rank, started) for rank in (0, 1)]:
        assert node.wait() == 0
    for name in ("here-0", "here-1"):
        (folder / name).unlink()

    again = [start(folder, rank, started, run="2") for rank in (1, 0)]

    assert [node.wait() for node in again] == [0, 0]
    assert not (folder / "here-0").exists()


def test_sigterm_to_the_shell_alone_lets_training_save_and_leaves_nothing_behind(
    folder: Path, started: list["subprocess.Popen[str]"]
) -> None:
    nodes = [start(folder, rank, started) for rank in (0, 1)]
    until(folder, "here-0", "here-1")

    for node in nodes:
        node.send_signal(signal.SIGTERM)

    assert all(node.wait() != 0 for node in nodes)
    until(folder, "saved-0", "saved-1")
    here = [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(folder)]
    wait_until_ended(here)
