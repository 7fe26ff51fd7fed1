"""A model of a training that is running + tasks -> their metrics (`stages.formats.evaluation.task_scores`).

The answers are kept as those of the stage `harness` are: a model that is scored again after a kill costs only what was
not answered before.
"""

import stages.evaluate.libraries  # noqa: F401 (before torch and lm-eval)

# isort: split

import os
import sys
import threading

from stages.evaluate.harness.params import HarnessParams
from stages.evaluate.harness.scoring import open_language_model, score, split_metrics
from stages.evaluate.harness.tasks import index_tasks, loaded
from stages.formats.evaluation.task_scores import TaskRequest, TaskScores
from stages.runtime.entry import run_stage

RESAMPLES = 100
"""For standard errors that have no formula: curves need no more."""


def main() -> None:
    """Score one model, as the first line of the standard input asks."""
    request = TaskRequest.model_validate_json(sys.stdin.readline())
    threading.Thread(target=end_with_the_training, daemon=True).start()
    params = HarnessParams(
        tasks=request.tasks, num_fewshot=None, limit=request.limit, bootstrap_resamples=RESAMPLES, seed=request.seed
    )
    index = index_tasks(params.tasks)
    model = open_language_model(request.folder) if request.folder else None
    metrics: dict[str, dict[str, float | None]] = {}
    stderr: dict[str, dict[str, float]] = {}
    for name in params.tasks:
        with loaded(name, index, params) as tasks:
            results = score(model, tasks, params).results["results"] if model else {}
        for task, values in results.items():
            metrics[task], stderr[task] = split_metrics(values)
    TaskScores(metrics=metrics, stderr=stderr).write(request.answer)


def end_with_the_training() -> None:
    """Its end of the pipe closes however it ends."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    run_stage(main)
