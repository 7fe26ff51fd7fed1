import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flows.run.process import Children, StageOutcome, group_lives, read_outcome, repro_arguments
from flows.run.warm_dvc import WarmDvc, start
from tests.flows.toy import make_toy


def run(folder: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> tuple[StageOutcome, list[str]]:
    monkeypatch.chdir(folder)
    lines: list[str] = []
    return Children().run(stage, lambda: WarmDvc().start(repro_arguments(stage)), lines.append), lines


def test_a_stage_runs_once_and_is_unchanged_the_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = make_toy(tmp_path / "toy")

    assert run(toy, "first", monkeypatch)[0].result == "ran"
    assert run(toy, "first", monkeypatch)[0].result == "unchanged"
    (toy / "first.txt").unlink()
    (toy / "dvc.lock").unlink()
    assert run(toy, "first", monkeypatch)[0].result == "restored"


def test_a_failure_carries_the_stages_own_words_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = make_toy(tmp_path / "toy", "stages:\n  bad:\n    cmd: sh bad.sh\n    outs: [x]\n")
    (toy / "bad.sh").write_text("echo 'error: corpus: nothing there' >&2\nexit 7\n")

    outcome, lines = run(toy, "bad", monkeypatch)

    assert (outcome.result, outcome.message, outcome.exit_code) == ("failed", "error: corpus: nothing there", 7)
    assert "error: corpus: nothing there" in lines


def test_a_line_that_renews_itself_counts_with_its_last_state() -> None:
    lines: list[str] = []

    Children().run("x", lambda: start([sys.executable, "-c", "print('10 %\\r50 %\\r100 %')"]), lines.append)

    assert lines == ["100 %"]


def test_stop_ends_everything_that_a_stage_has_started(tmp_path: Path) -> None:
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read(); "
    script += "import time; time.sleep(600)"
    children, lines = Children(), []
    outcomes: list[StageOutcome] = []
    command = [sys.executable, "-c", script]
    thread = threading.Thread(target=lambda: outcomes.append(children.run("x", lambda: start(command), lines.append)))
    thread.start()
    while not lines:
        time.sleep(0.02)
    (process,) = children._running

    children.stop()
    thread.join(timeout=30)

    assert outcomes[0].result == "stopped"
    assert not group_lives(process.pid)
    assert subprocess.run(["ps", "-p", lines[0]], check=False, capture_output=True).returncode == 1


def test_nothing_starts_after_stop() -> None:
    children = Children()
    children.stop()

    assert children.run("x", lambda: start(["false"]), print).result == "stopped"


def test_without_words_of_its_own_the_last_line_speaks() -> None:
    assert read_outcome("x", 1, ["a", "b"], 0.0, stopping=False).message == "b"
