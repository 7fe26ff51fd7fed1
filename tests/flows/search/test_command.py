"""`parrotflow search` from the command line, on a pipeline of which each run is a DVC experiment."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from flows.experiments.runs import recorded_runs
from tests.flows.search.toy_training import command, make_toy_training

SPACE = {"model.rate": {"low": 0.001, "high": 1.0, "log": True}, "model.width": {"choices": [8, 64, 16]}}


def test_a_search_that_is_interrupted_continues_stops_bad_runs_and_leaves_dvc_experiments(tmp_path: Path) -> None:
    folder = make_toy_training(
        tmp_path / "toy", seconds=0.4, at_once=2, startup_runs=2, budget={"runs": 5}, space=SPACE
    )
    record = folder / "searches/toy/runs.jsonl"

    interrupted = command(folder, "search", "toy")
    assert interrupted.stdout is not None
    said, preparations = [], 0
    for line in interrupted.stdout:
        said.append(line)
        preparations += "preparing a clone for each of" in line
        if (preparations == 2 and "started" in line) or (" ran in " in line and preparations == 2):
            break  # the second batch has begun
    interrupted.send_signal(signal.SIGINT)
    rest, _ = interrupted.communicate(timeout=120)
    first = "".join(said) + rest
    continued = command(folder, "search", "toy")
    second, _ = continued.communicate(timeout=120)

    assert interrupted.returncode == 1, first
    assert "the same command" in first
    assert continued.returncode == 0, second
    runs = recorded_runs(record)
    assert {run.experiment.rpartition("-")[0] for run in runs} == {"toy-0001", "toy-0002", "toy-0003", ""}
    assert [run.state for run in runs].count("failed") == 2
    assert "5 runs: 3 finished, 1 stopped, 1 failed." in second
    assert "run 4 stopped: rate 0.826, width 8: stopped after " in second
    assert "failed: train: error: no room for 64" in second
    assert (first + second).count(": train failed") == 1
    assert ", seed" not in first + second
    (failed,) = (run for run in runs if "no room" in run.message)
    assert [clone.name for clone in (folder / ".parrotflow/sweep").iterdir()] == [failed.cell]
    assert json.loads((folder / "searches/toy/spent.json").read_text())["seconds"] > 10
    listed = subprocess.run(
        [sys.executable, "-m", "dvc", "exp", "list", "--name-only"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert set(listed.split()) == {run.experiment for run in runs if run.experiment}
    shown, _ = command(folder, "search", "toy", "--show").communicate(timeout=60)
    assert second.endswith(shown)
