"""Benchmarks during training: `train.evaluate_tasks`.

The weights are written to a folder, and a process of the stage `evaluate` scores them there, while all processes of the
training wait: nothing of the training's state, random numbers or order is touched. A model waits in its folder until it
is scored. So one whose scoring was cut short by a stop is scored when the run continues.

    .parrotflow/checkpoints/FINGERPRINT/
        tasks.tsv               step, task, metric, value, standard error
        tasks/step-00000500/    a model that waits for its scores

Not among the curves that DVC keeps: the code of the training is not the code that computes these numbers.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import torch
from accelerate import Accelerator

from stages.formats.evaluation.task_scores import SCORER, TaskRequest, TaskScores
from stages.formats.tokens import Manifest
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.entry import EXIT_UNAVAILABLE, UnavailableError, UserError
from stages.runtime.supervision import VARIABLE
from stages.train.model.build import full_model, save_model
from stages.train.model.loss import CausalLoss
from stages.train.model.tokenizer import write_tokenizer
from stages.train.parallel import PROCESS_GROUP, on_main
from stages.train.params import TrainParams

LONGEST = (PROCESS_GROUP.timeout or timedelta(hours=1)) - timedelta(minutes=10)
"""The other processes wait for no longer than their group's timeout."""

OF_WORKERS = (
    *("ACCELERATE_", "FSDP_", "GROUP_", "LOCAL_", "MASTER_", "PARALLELISM_", "RANK", "ROLE_"),
    *("TORCHELASTIC_", "WORLD_SIZE", VARIABLE),
)
"""How the names of variables begin that make a process one of the training's."""

TASK_SCORES = "tasks.tsv"
"""Their file. A checkpoint has a copy, as of the curves."""

COLUMNS = ("step", "task", "metric", "value", "stderr")


def check_tasks(params: TrainParams) -> None:
    """Raise UserError where a task cannot be scored, before anything runs: lm-eval is missing, or refuses it."""
    if not params.evaluate_tasks.tasks:
        return
    where = "params.yaml: train.evaluate_tasks"
    if find_spec("lm_eval") is None:
        raise UserError(f"{where}: lm-eval is not installed here; `pip install lm-eval`, or leave its tasks empty")
    try:
        with tempfile.TemporaryDirectory() as folder:
            _ask(_request(params, None, Path(folder) / "answer.json"))
    except UserError as error:
        raise type(error)(f"{where}: {error}") from None


@dataclass(frozen=True)
class TaskEvaluation:
    """Scores models of a run. Every process calls its methods; the main one works."""

    params: TrainParams
    folder: Path
    """Of the run's checkpoints."""
    accelerator: Accelerator
    vocabulary: Manifest
    is_stopping: Callable[[], bool]

    def resume(self, step: int, checkpoint: Path | None) -> None:
        """Take up what a run that continues after `step` has, here and in its checkpoint, which may be of another
        machine; later steps are computed again.

        Also where this start scores none: a later one may, and would take their scores for those of its own steps.
        """
        if not self.accelerator.is_main_process:
            return
        asked, here = self.params.evaluate_tasks.tasks, _rows_in(self._file)
        there = _rows_in(checkpoint / TASK_SCORES) if checkpoint else []
        if not (asked or here or there):
            return
        try:
            for waiting in self._waiting():
                if _step(waiting) > step:
                    shutil.rmtree(waiting)
            known = {row[0] for row in there}
            rows = [*there, *(row for row in here if row[0] not in known)]
            self._write([row for row in rows if int(row[0]) <= step])
            if asked:
                self._score()
        except OSError as error:
            self._warn(step, str(error))

    def measure(self, done: int, model: CausalLoss) -> None:
        """Score the weights after `done` steps."""
        plain = full_model(model, self.accelerator, self.vocabulary)
        if plain is not None:
            try:
                with atomic_folder(self.folder / "tasks" / f"step-{done:08d}") as folder:
                    save_model(plain, folder)
                    write_tokenizer(folder, self.vocabulary.eos_id)
                del plain
                self._score()
            except OSError as error:
                self._warn(done, str(error))
        self.accelerator.wait_for_everyone()

    def were_cut_short(self) -> bool:
        """Whether a stop has left models without their scores. Every process calls this."""
        asked = bool(self.params.evaluate_tasks.tasks)
        return asked and on_main(self.accelerator, lambda: self.is_stopping() and bool(self._waiting()))

    def _score(self) -> None:
        """Score the models that wait, in order."""
        answer = self.folder / "tasks" / "answer.json"
        for waiting in self._waiting():
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # the scorer's model is on the same GPU
            try:
                if not _ask(_request(self.params, waiting, answer), self.is_stopping):
                    return
                self._record(_step(waiting), TaskScores.read(answer))
            except UserError as error:
                self._warn(_step(waiting), str(error))
            shutil.rmtree(waiting, ignore_errors=True)

    def _record(self, step: int, scores: TaskScores) -> None:
        rows = [
            (str(step), task, metric, _text(value), _text(scores.stderr[task].get(metric)))
            for task, values in scores.metrics.items()
            for metric, value in values.items()
        ]
        self._write([*(row for row in _rows_in(self._file) if int(row[0]) != step), *rows])
        numbers = {f"tasks/{task}/{metric}": float(value) for _, task, metric, value, _ in rows if value}
        self.accelerator.log(numbers, step=step)
        shown = ", ".join(f"{name.removeprefix('tasks/')} {value:.4g}" for name, value in numbers.items())
        print(f"tasks after step {step}: {shown}", flush=True)

    def _warn(self, step: int, said: str) -> None:
        """What goes wrong, such as a full disk, costs these numbers, not the run."""
        print(f"warning: train.evaluate_tasks: not scored after step {step} ({said}); the run continues", flush=True)

    def _waiting(self) -> list[Path]:
        return sorted((self.folder / "tasks").glob("step-*"))

    def _write(self, rows: list[tuple[str, ...]]) -> None:
        rows.sort(key=lambda row: int(row[0]))
        atomic_write(self._file, "".join("\t".join(row) + "\n" for row in [COLUMNS, *rows]))

    @property
    def _file(self) -> Path:
        return self.folder / TASK_SCORES


def _rows_in(file: Path) -> list[tuple[str, ...]]:
    with suppress(FileNotFoundError):
        return [tuple(line.split("\t")) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    return []


def _step(waiting: Path) -> int:
    return int(waiting.name.removeprefix("step-"))


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.7g}"


def _request(params: TrainParams, folder: Path | None, answer: Path) -> TaskRequest:
    asked = params.evaluate_tasks
    seed = params.seed % 2**32  # lm-eval takes no larger one
    return TaskRequest(tasks=tuple(asked.tasks), limit=asked.limit, seed=seed, folder=folder, answer=answer)


def _ask(request: TaskRequest, is_stopping: Callable[[], bool] = lambda: False) -> bool:
    """Run the scorer to its end; False where the training is to stop. Raises UserError with its last line if it fails.

    Where something that it needs cannot be reached, that is an UnavailableError.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(OF_WORKERS)}
    # All processes of this machine wait meanwhile: their threads are free.
    own["OMP_NUM_THREADS"] = str(torch.get_num_threads() * int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", SCORER], stdin=subprocess.PIPE, stdout=log, stderr=log, env=own, text=True
        )
        try:
            assert process.stdin is not None
            process.stdin.write(request.model_dump_json() + "\n")
            process.stdin.flush()
            while process.poll() is None:
                if is_stopping():
                    return False
                if time.monotonic() - began > LONGEST.total_seconds():
                    raise UserError(f"it took more than {LONGEST}; lower its limit")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            log.seek(0)
            lines = log.read().strip().splitlines() or [f"exit code {process.returncode}"]
            kind = UnavailableError if process.returncode == EXIT_UNAVAILABLE else UserError
            raise kind(lines[-1].removeprefix("error: "))
    return True
