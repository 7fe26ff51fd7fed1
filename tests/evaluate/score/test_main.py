import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from stages.evaluate.score.__main__ import main
from stages.formats.evaluation.generation import Completion, write_completions
from stages.formats.evaluation.problems import Problem, problems_sha256, read_problems, write_problems
from stages.formats.evaluation.scores import SCORE_REPORT, VERDICTS, ScoreReport
from stages.runtime.errors import EXIT_USER_ERROR, UserError
from tests.small_project import ROOT, write_project
from tests.waiting import wait_until, wait_until_ended

PROBLEMS = read_problems(ROOT / "evaluation/problems/python.jsonl")[:3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `generate` leaves for `score`: of each problem a sample that passes, one that does not, and that again."""
    monkeypatch.chdir(tmp_path)
    write_params(run_generated_code=True)
    write_problems(PROBLEMS)
    write_completions(sample for problem in PROBLEMS for sample in samples(problem))
    return tmp_path


def write_params(**changes: Any) -> None:
    write_project(Path(), "score", **{f"score__{name}": value for name, value in changes.items()})


def samples(problem: Problem) -> list[Completion]:
    texts = [problem.solution, "    raise KeyError\n", "    raise KeyError\n"]
    return [
        Completion(task_id=problem.task_id, sample=number, seed=number, completion=text, ended="stop")
        for number, text in enumerate(texts)
    ]


def report() -> Any:
    return ScoreReport.read().model_dump(mode="json")


@pytest.mark.needs_bwrap
def test_each_sample_has_a_verdict_and_each_set_its_pass_at_k(project: Path) -> None:
    write_params(run_generated_code=True, k=[1, 3])

    main()

    verdicts = [json.loads(line) for line in VERDICTS.read_text().splitlines()]
    assert [(one["task_id"], one["sample"], one["result"], one["exception"]) for one in verdicts] == [
        (problem.task_id, number, *outcome)
        for problem in sorted(PROBLEMS, key=lambda problem: problem.task_id)
        for number, outcome in enumerate([("passed", ""), ("exception", "KeyError"), ("exception", "KeyError")])
    ]
    score = report()["sets"]["parrotflow"]
    assert score["results"] == {"passed": 3, "exception": 6}
    # Three problems are too few for an interval.
    assert score["pass_at_k"]["1"] == {"value": pytest.approx(1 / 3, abs=1e-5), "interval_95": None}
    assert score["pass_at_k"]["3"]["value"] == 1
    assert {name: report()[name] for name in ("ran", "samples", "programs", "isolation")} == {
        "ran": True,
        "samples": 9,
        "programs": 6,
        "isolation": "bubblewrap+rlimits+seccomp",
    }
    assert {"seed", "bootstrap_resamples", "cpu_seconds", "wall_seconds"} <= report()["settings"].keys()


@pytest.mark.needs_bwrap
def test_a_problem_that_its_own_solution_does_not_pass_is_named_and_left_out_of_the_figure(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tests need a library that is not installed: nothing could pass them."""
    impossible = PROBLEMS[0].model_copy(update={"test": f"import no_such_library\n{PROBLEMS[0].test}"})
    write_problems([impossible, *PROBLEMS[1:]])
    write_params(run_generated_code=True, k=[1])

    main()

    said = f"{impossible.task_id} is left out of pass@k: its own solution does not pass here (ModuleNotFoundError)"
    assert said in capsys.readouterr().out.splitlines()
    score = report()["sets"]["parrotflow"]
    assert score["left_out"] == {impossible.task_id: "ModuleNotFoundError"}
    assert score["results"] == {"passed": 2, "exception": 7}
    assert score["pass_at_k"]["1"]["value"] == pytest.approx(1 / 3, abs=1e-5)  # of the other two problems


def test_nothing_is_run_unless_params_ask_for_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_params(run_generated_code=False)
    monkeypatch.setenv("PATH", "/nowhere")  # no bubblewrap, which is not needed

    main()

    assert VERDICTS.read_text() == "\n"  # DVC warns of an empty file
    assert report()["ran"] is False
    assert report()["isolation"] == "none: not run"
    counted = {"problems": 3, "problems_sha256": problems_sha256(PROBLEMS), "samples": 9}
    assert report()["sets"] == {"parrotflow": {**counted, "results": {}, "left_out": {}, "pass_at_k": {}}}


def test_problems_in_a_language_that_cannot_be_run_are_counted_and_refused_only_where_they_would_be_run(
    project: Path,
) -> None:
    write_problems(problem.model_copy(update={"language": "text"}) for problem in PROBLEMS)
    write_params(run_generated_code=False)

    main()

    assert (report()["samples"], report()["programs"]) == (9, 0)
    write_params(run_generated_code=True)
    with pytest.raises(UserError, match="parrotflow/0: programs in text cannot be run"):
        main()


@pytest.mark.needs_bwrap
def test_the_same_completions_give_the_same_bytes_for_any_number_of_workers(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main()
    first = VERDICTS.read_bytes(), SCORE_REPORT.read_bytes()
    monkeypatch.setenv("PARROTFLOW_WORKERS", "3")

    main()

    assert (VERDICTS.read_bytes(), SCORE_REPORT.read_bytes()) == first


def killed(processes: int) -> list[psutil.Process]:
    """The processes of a score of one worker that is killed once it has that many."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PARROTFLOW_WORKERS": "1"}
    run = subprocess.Popen([sys.executable, "-m", "stages.evaluate.score"], env=variables)
    command = psutil.Process(run.pid)
    found = wait_until(lambda: all_of if len(all_of := command.children(recursive=True)) >= processes else [])
    run.kill()
    run.wait()
    return found


@pytest.mark.needs_bwrap
def test_a_kill_leaves_no_sandbox(project: Path) -> None:
    slow = [one.model_copy(update={"completion": "    __import__('time').sleep(60)"}) for one in samples(PROBLEMS[0])]
    write_completions(slow + [one for problem in PROBLEMS[1:] for one in samples(problem)])
    write_params(run_generated_code=True, limits={"cpu_seconds": 3, "wall_seconds": 100.0, "memory_megabytes": 512})

    wait_until_ended(killed(processes=4))  # the watcher, bubblewrap, its child, and Python, which runs the program


def test_a_kill_leaves_no_sandbox_that_is_still_being_made(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexec sleep 600\n")  # does not die with its parent yet
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    wait_until_ended(killed(processes=2))


def test_a_machine_without_a_sandbox_is_found_before_a_run(project: Path) -> None:
    write_params()
    command = [sys.executable, "-m", "stages.evaluate.score.sandbox"]
    done = subprocess.run(
        command, env={"PATH": "", "PYTHONPATH": str(ROOT)}, check=False, capture_output=True, text=True
    )

    assert done.returncode == EXIT_USER_ERROR
    assert "generated code never runs without isolation" in done.stderr


def test_pass_at_k_of_more_samples_than_there_are_is_refused(project: Path) -> None:
    write_params(run_generated_code=True, k=[1, 10])

    with pytest.raises(UserError, match=r"score.k = \[1, 10\]: parrotflow/0 has 3 samples, and pass@10 needs at least"):
        main()


def test_a_completion_of_an_unknown_problem_is_refused(project: Path) -> None:
    write_problems(PROBLEMS[:2])

    with pytest.raises(UserError, match="parrotflow/2: has a completion, but is not among the problems"):
        main()
