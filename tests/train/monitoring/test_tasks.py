"""`train.evaluate_tasks`: benchmarks of the weights so far, by lm-evaluation-harness in a process of its own."""

import json
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator

from stages.evaluate.harness.params import HarnessParams
from stages.evaluate.harness.scoring import open_language_model, score
from stages.evaluate.harness.tasks import index_tasks, loaded
from stages.formats.reports import read_json
from stages.runtime.entry import UserError
from stages.train import worker
from stages.train.loop import StopSignal
from stages.train.monitoring import tasks
from stages.train.monitoring.tasks import TaskEvaluation, check_tasks
from stages.train.params import TrainParams
from tests.evaluate.harness.conftest import write_task
from tests.small_project import ROOT
from tests.train.models import vocabulary
from tests.train.small_run import copy_of, largest_difference, params, run_workers, write_params, write_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a task of its own, `own`."""
    project = write_project(tmp_path / "project")
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    write_task(metric_list=[{"metric": name, "aggregation": "mean"} for name in ("acc", "perplexity")])
    return project


def rows(project: Path) -> dict[tuple[int, str, str], float]:
    """The curves: (step, task, metric) -> value."""
    (file,) = (project / ".parrotflow/checkpoints").glob("*/tasks.tsv")
    header, *lines = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines())
    assert header == ["step", "task", "metric", "value", "stderr"]
    return {(int(step), task, metric): float(value) for step, task, metric, value, _ in lines}


def own_task(every_steps: int) -> dict[str, object]:
    return {"tasks": ["own"], "every_steps": every_steps, "limit": None}


def test_the_weights_are_scored_at_the_steps_that_are_asked_for_and_none_of_them_changes(
    project: Path, tmp_path: Path
) -> None:
    settings = {"max_steps": 3, "deterministic_micro_batch_size": 1}
    alone = copy_of(project, tmp_path / "alone")
    write_params(alone, **settings)
    run_workers(alone, 1)
    write_params(project, **settings, evaluate_tasks=own_task(every_steps=2))
    run_workers(project, 2)

    assert largest_difference(alone, project) == 0
    assert {step for step, _, _ in rows(project)} == {2, 3}
    asked = HarnessParams(tasks=("own",), num_fewshot=None, limit=None, bootstrap_resamples=100, seed=0)
    with loaded("own", index_tasks(("own",)), asked) as task:
        of_model = score(open_language_model(project / "model"), task, asked).results["results"]["own"]
    assert rows(project)[3, "own", "perplexity"] == pytest.approx(of_model["perplexity,none"], rel=1e-5)
    assert rows(project)[2, "own", "perplexity"] != rows(project)[3, "own", "perplexity"]


def main_that_times_its_scoring() -> None:
    """The worker, which leaves the seconds that its scorers took in a file."""
    ask, taken = tasks._ask, []

    def timed(*arguments: Any) -> bool:
        began = time.perf_counter()
        scored = ask(*arguments)
        taken.append(time.perf_counter() - began)
        Path("taken").write_text(json.dumps(taken), encoding="utf-8")
        return scored

    tasks._ask = timed
    worker.main()


def main_that_is_asked_to_stop() -> None:
    """The worker, which gets a SIGTERM before its first step."""
    StopSignal.is_set = property(lambda self: True)  # type: ignore[assignment]
    worker.main()


@pytest.mark.parametrize(("max_steps", "scored"), [(3, {2, 3}), (2, {2})])
def test_weights_whose_scoring_a_stop_cut_short_are_scored_when_the_run_continues(
    project: Path, max_steps: int, scored: set[int]
) -> None:
    """Also those of the last step: a run that has ended is not continued."""
    write_params(project, max_steps=max_steps, evaluate_tasks=own_task(every_steps=2))
    run_workers(project, 1, main_that_is_asked_to_stop, expected_code=75)
    assert list((project / ".parrotflow/checkpoints").glob("*/tasks/step-00000002"))
    run_workers(project, 1, main_that_times_its_scoring)
    assert {step for step, _, _ in rows(project)} == scored
    speed, taken = read_json(project / "reports/train_speed.json"), json.loads((project / "taken").read_text())
    assert speed["tokens_per_second"] > 0
    assert len(taken) == len(scored)
    if max_steps == 3:  # else it is that of the start before
        assert sum(taken) <= speed["evaluation_seconds"] < speed["seconds"]  # the tasks of both steps are no training
    assert not list((project / ".parrotflow/checkpoints").glob("*/tasks/step-*"))


def test_another_machine_that_goes_on_from_the_mirror_has_the_scores_of_the_steps_before(
    project: Path, tmp_path: Path
) -> None:
    mirror, constant = (tmp_path / "mirror").as_uri(), {"schedule__name": "constant"}
    write_params(project, **constant, max_steps=2, evaluate_tasks=own_task(every_steps=2))
    run_workers(project, 1, PARROTFLOW_MIRROR=mirror)
    before = rows(project)
    shutil.rmtree(project / ".parrotflow")
    write_params(project, **constant, max_steps=3, evaluate_tasks=own_task(every_steps=2))
    run_workers(project, 1, PARROTFLOW_MIRROR=mirror)
    assert {step for step, _, _ in rows(project)} == {2, 3}
    assert rows(project).items() > before.items()


def test_a_task_that_fails_later_costs_its_numbers_and_not_the_run(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_params(project, max_steps=2, evaluate_tasks=own_task(every_steps=2))
    (project / "tasks/answers.jsonl").unlink()
    run_workers(project, 1)
    assert (project / "model").is_dir()
    assert "not scored after step 2 (harness.tasks: `own` cannot be loaded" in capfd.readouterr().out


def test_a_full_disk_when_a_run_continues_costs_the_numbers_and_not_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.tsv").write_text("step\ttask\tmetric\tvalue\tstderr\n2\town\tacc\t0.5\t\n")
    asked = TrainParams.model_validate(params(evaluate_tasks=own_task(1)))
    tasks = TaskEvaluation(asked, tmp_path, Accelerator(cpu=True), vocabulary(), lambda: False)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        tasks.resume(2, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "not scored after step 2" in capsys.readouterr().out


def test_scores_of_steps_that_are_computed_again_go_though_this_start_scores_none(tmp_path: Path) -> None:
    header = "step\ttask\tmetric\tvalue\tstderr\n"
    (tmp_path / "tasks.tsv").write_text(f"{header}2\town\tacc\t0.5\t\n4\town\tacc\t0.9\t\n")
    none_asked = TrainParams.model_validate(params())
    TaskEvaluation(none_asked, tmp_path, Accelerator(cpu=True), vocabulary(), lambda: False).resume(2, None)
    assert (tmp_path / "tasks.tsv").read_text() == f"{header}2\town\tacc\t0.5\t\n"


def test_a_seed_that_is_too_large_for_lm_eval_refuses_no_training(project: Path) -> None:
    check_tasks(TrainParams.model_validate(params(evaluate_tasks=own_task(1), seed=2**32)))


def test_an_unknown_task_is_refused_before_anything_runs(project: Path) -> None:
    asked = TrainParams.model_validate(params(evaluate_tasks=own_task(1) | {"tasks": ["owm"]}))
    with pytest.raises(UserError, match=r"train\.evaluate_tasks: .*no task `owm`.*\(is it .*own"):
        check_tasks(asked)
