"""`parrotflow search NAME`: propose runs, run them, learn from them, until the budget is spent.

What became of the runs is a study of optuna in a journal; the runs themselves are in the record of their cells. A batch
follows from the trials before it, so the same command continues after a kill, and `--show` needs no more.
"""

import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from flows.dvc_repo.cache import reach
from flows.experiments.cells import Cell, check_cells
from flows.experiments.rows import CurvePoints, number_at
from flows.experiments.runs import RECORD, Batch, Run, RunCells, last_runs
from flows.search.proposals import (
    Proposal,
    cell_of_trial,
    corners,
    early_stop,
    judged,
    over_shares,
    propose,
    with_presets,
)
from flows.search.search_file import Search, read_search, search_path
from flows.search.trials import open_study, progress, report, runs_csv
from flows.sweep.clone import CLONES
from stages.formats.reports import read_json, write_json
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import EXIT_CONTINUE, UserError
from stages.runtime.section import PARAMS_FILE, read_params_file, value_at

JOURNAL, SPENT = "optuna.log", "spent.json"
"""In searches/NAME/, besides the record of runs: the study; the time that all calls took."""

CLOCK_WRITTEN_EVERY_SECONDS = 10.0


class UnfinishedError(UserError):
    """A run was killed, or what it needed did not answer: that says nothing about its values."""

    exit_code = EXIT_CONTINUE


@dataclass(frozen=True)
class Found:
    """What a search has found so far, and why it goes no further."""

    prepared: "PreparedSearch"
    trials: list[FrozenTrial]
    runs: Mapping[str, Run]
    """Those that are recorded, by their cells."""
    ended: str

    def text(self) -> str:
        """For people."""
        return f"{self.prepared.report(self.trials, self.runs)}\nEnded: {self.ended}."


def run_search(name: str, run_cells: RunCells | None) -> Found:
    """Continue a search until its budget is spent; with None only collect what is recorded.

    Raises UserError on faults of the file, if the first runs all fail, and if the file or params.yaml has changed
    since; UnfinishedError where a run was killed.
    """
    prepared = prepared_search(name)
    known = last_runs(prepared.folder / RECORD)
    study = open_study(prepared.folder / JOURNAL, prepared.path.stem, prepared.written, write=run_cells is not None)
    trials = study.get_trials() if study else []
    prepared.require_same_params(map(prepared.cell, trials), known)
    while not (ended := prepared.spent(trials, known)):
        after, batch = prepared.batch(trials)
        if not batch:
            ended = "every run of the space was made"
            break
        done = [known[item.cell.id] for item in batch if item.cell.id in known]
        if run_cells and not trials and len(done) == len(batch) and all(run.state == "failed" for run in done):
            known = {}  # nothing has worked yet, so it is tried again
        prepared.require_same_params((item.cell for item in batch), known)
        missing = [item.cell for item in batch if item.cell.id not in known]
        if missing and (ended := "the rest is not run yet" if run_cells is None else prepared.late()):
            batch = batch[: next(n for n, item in enumerate(batch) if item.cell.id not in known)]
        elif missing and run_cells:
            known |= {run.cell: run for run in prepared.run(missing, trials[:after], run_cells)}
        new = [
            judged(prepared.search, trials[:after], number, item, known[item.cell.id], prepared.params)
            for number, item in enumerate(batch, len(trials))
        ]
        if study and run_cells:
            if not trials:
                prepared.require_not_all_failed(new)
            study.add_trials(new)
            for trial in new:
                if trial.state == TrialState.PRUNED:  # the clone of a failed run is kept, with its checkpoints
                    shutil.rmtree(CLONES / trial.user_attrs["cell"], ignore_errors=True)
        trials += new
        if missing and run_cells:
            print(
                *(progress(prepared.search, trials, trial, prepared.cell(trial)) for trial in new), sep="\n", flush=True
            )
        if ended:
            break
    if run_cells:
        atomic_write(prepared.folder / "best.md", f"{prepared.search.question}\n\n{prepared.report(trials, known)}")
        atomic_write(prepared.folder / "runs.csv", runs_csv(prepared.search, trials, known))
    return Found(prepared, trials, known, ended)


@dataclass(frozen=True)
class PreparedSearch:
    """A search with the params.yaml that its runs change."""

    path: Path
    written: Search
    search: Search
    """With the choices of conf/ replaced by their values, which the written one has not."""
    params: dict[str, Any]
    read: set[str]
    """Dotted keys of params.yaml that its runs read; empty text for all."""

    @property
    def folder(self) -> Path:
        """Of the record and the results."""
        return self.path.with_suffix("")

    def batch(self, trials: Sequence[FrozenTrial]) -> tuple[int, list[Proposal]]:
        """What is to be run after these trials, within the budget of runs; and how many it was proposed after.

        That are fewer than there are where a batch was interrupted, or cut off by the budget.
        """
        name, after = self.path.stem, trials[-1].user_attrs["after"] if trials else 0
        rest: list[Proposal] = []
        if (done := len(trials) - after) < self.search.at_once:
            rest = propose(name, self.search, trials[:after])[done:]
        if not rest:
            after, rest = len(trials), propose(name, self.search, trials)
        runs = self.search.budget.runs
        return after, rest[: runs - len(trials) if runs else None]

    def run(self, cells: Sequence[Cell], trials: Sequence[FrozenTrial], run_cells: RunCells) -> list[Run]:
        """Run cells after these trials. Raises UnfinishedError where one has no result through no fault of its own."""
        rule = early_stop(self.search, trials, self.params)

        def stop_early(cell: Cell, curves: Mapping[str, CurvePoints]) -> str:
            assert rule is not None
            points = [point for curve in self.search.curves for point in curves.get(curve, [])]
            stop = rule.stopped(over_shares(self.search, cell, points, self.params))
            return stop[1] if stop else ""

        with self._clock():
            search, title = self.search, f"search {self.path.stem}"
            batch = Batch(title, cells, search.targets, search.reports, search.curves, self.folder / RECORD)
            runs = run_cells(batch, stop_early=stop_early if rule else None)
        unfinished = [
            f"{self.path}: {cell.name} ({cell.label}) has no result yet: {run.message}"
            for cell, run in zip(cells, runs, strict=True)
            if run.state not in ("finished", "failed")
        ]
        if unfinished:
            advice = "the same command continues with it; if it ends like this again and again, narrow `space`"
            raise UnfinishedError("\n".join([*unfinished, advice]))
        return runs

    def require_same_params(self, cells: Iterable[Cell], runs: Mapping[str, Run]) -> None:
        """Raise UserError for a run that was made with other values than today's params.yaml gives."""
        for cell in cells:
            run = runs.get(cell.id)
            if run and run.params and (moved := cell.moved(run.params, self.params, self.read)):
                raise UserError(
                    f"{self.folder / RECORD}: {cell.name} was made with another {PARAMS_FILE}: "
                    f"{', '.join(moved)}; put these values back, or move {self.folder} away to search anew"
                )

    def require_not_all_failed(self, trials: Sequence[FrozenTrial]) -> None:
        """Raise UserError with the messages if there are trials and all of them have failed."""
        if trials and all(trial.state == TrialState.FAIL for trial in trials):
            names = [self.cell(trial).name for trial in trials]
            failed = zip(names, trials, strict=True)
            raise UserError("\n".join(f"{self.path}: {n} failed: {t.user_attrs['message']}" for n, t in failed))

    def report(self, trials: Sequence[FrozenTrial], runs: Mapping[str, Run]) -> str:
        """What these trials have shown, as Markdown."""
        return report(self.written, trials, [self.cell(trial) for trial in trials], runs)

    def cell(self, trial: FrozenTrial) -> Cell:
        """That of a trial."""
        return cell_of_trial(self.path.stem, self.search, trial)

    def spent(self, trials: Sequence[FrozenTrial], runs: Mapping[str, Run]) -> str:
        """Which budget of runs or compute is spent; empty text for none."""
        budget = self.search.budget
        if budget.runs and len(trials) >= budget.runs:
            return f"{budget.runs} runs are spent"
        if budget.compute:
            done = [trial.user_attrs["cell"] for trial in trials if trial.state == TrialState.COMPLETE]
            flop = sum(number_at(runs[cell].reports, budget.compute.source) or 0.0 for cell in done if cell in runs)
            if flop >= budget.compute.tflop * 1e12:
                return f"{budget.compute.tflop:g} TFLOP are spent"
        return ""

    def late(self) -> str:
        """Whether the budget of time is spent; empty text if not."""
        hours = self.search.budget.hours
        return f"{hours:g} hours are spent" if hours and self._seconds() >= hours * 3600 else ""

    def _seconds(self) -> float:
        spent = self.folder / SPENT
        return float(read_json(spent)["seconds"]) if spent.is_file() else 0.0

    @contextmanager
    def _clock(self) -> Iterator[None]:
        """Add the time of a batch to that of all calls, also where the batch is interrupted, or killed meanwhile."""
        before, started, ended = self._seconds(), time.monotonic(), threading.Event()

        def write() -> None:
            write_json(self.folder / SPENT, {"seconds": round(before + time.monotonic() - started, 1)})

        def write_now_and_then() -> None:
            while not ended.wait(CLOCK_WRITTEN_EVERY_SECONDS):
                write()

        writer = threading.Thread(target=write_now_and_then, daemon=True)
        writer.start()
        try:
            yield
        finally:
            ended.set()
            writer.join()
            write()


def prepared_search(name: str) -> PreparedSearch:
    """Read the file and try every bound and every choice on params.yaml. Raises UserError."""
    written, path, params = read_search(name), search_path(name), read_params_file()
    if not re.fullmatch(r"\w[\w-]*(\.[\w-]+)*", path.stem):
        raise UserError(
            f"{path}: its runs are DVC experiments of this name, and git takes no `{path.stem}`; give the file a name "
            "of letters, digits, `-` and `_`"
        )
    reached = reach(written.targets)
    reached.require_written(path, written.reports | {source.partition(":")[0] for source in written.curves})
    try:
        search = with_presets(written)
        cells = corners(path.stem, search)
        check_cells(path, cells, params)
        for key, cell in ((search.stop_early.steps, cell) for cell in cells if search.stop_early):
            steps = value_at(cell.params(params), key)
            if not isinstance(steps, int | float) or not steps > 0:
                raise UserError(f"stop_early.steps: {key} of {PARAMS_FILE} is no number of steps: {steps!r}")
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None
    return PreparedSearch(path, written, search, params, reached.params)
