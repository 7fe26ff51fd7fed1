"""`parrotflow search NAME`: propose runs, run them, learn from them, until the budget is spent.

The record of runs is all that is kept: a search is computed again from its first proposal on, and what is recorded is
not run again. So the same command continues after a kill, and `--show` needs no more.
"""

import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.dvc_repo.experiments import reach
from flows.experiments.cells import Cell, check_cells
from flows.experiments.runs import Run, RunCells, last_runs
from flows.search.proposals import corners, importances, propose, with_presets, write_journal
from flows.search.results import progress, report, runs_csv
from flows.search.search_file import Search, read_search, search_path
from flows.search.trials import Proposal, Trial, curve_over_shares, early_stop, judged, number_of
from flows.sweep.clone import CLONES
from flows.sweep.git import git
from stages.formats.reports import read_json, write_json
from stages.runtime.atomic import atomic_write
from stages.runtime.dotted import value_at
from stages.runtime.entry import EXIT_CONTINUE, UserError
from stages.runtime.section import PARAMS_FILE, read_params_file

RECORD, JOURNAL, SPENT = "runs.jsonl", "optuna.log", "spent.json"
"""In searches/NAME/: the runs; the same as a study of optuna; the time that all calls took."""

CLOCK_WRITTEN_EVERY_SECONDS = 10.0

Curves = Mapping[str, list[tuple[float, float]]]


class UnfinishedError(UserError):
    """A run was killed, or what it needed did not answer: that says nothing about its values."""

    exit_code = EXIT_CONTINUE


@dataclass(frozen=True)
class Found:
    """What a search has found so far."""

    plan: "Plan"
    trials: list[Trial]
    ended: str
    """Why it goes no further."""
    others: int
    """Recorded runs that the file does not propose as it is now."""

    def text(self) -> str:
        """For people."""
        others = f"{self.others} recorded runs are not proposed by the file as it is now.\n" if self.others else ""
        return f"{self.plan.report(self.trials)}\n{others}Ended: {self.ended}."


def run_search(name: str, run_cells: RunCells | None) -> Found:
    """Continue a search until its budget is spent; with None only collect what is recorded.

    Raises UserError on faults of the file, if the first runs all fail, and if params.yaml has changed since;
    UnfinishedError where a run was killed.
    """
    plan = read_plan(name)
    known = last_runs(plan.folder / RECORD)
    recorded = set(known)
    trials: list[Trial] = []
    while not (ended := plan.spent(trials)):
        batch = plan.batch(trials)
        if not batch:
            ended = "every run of the space was made"
            break
        if run_cells and not trials and all(_failed(known.get(item.cell.id)) for item in batch):
            known = {}  # nothing has worked yet, so it is tried again
        missing = [item.cell for item in batch if item.cell.id not in known]
        if missing and (ended := "the rest is not run yet" if run_cells is None else plan.late()):
            trials += plan.judged(trials, [item for item in batch if item.cell.id in known], known)
            break
        if missing and run_cells:
            known |= {run.cell: run for run in plan.run(missing, trials, run_cells)}
        judgements = plan.judged(trials, batch, known)
        if run_cells and not trials and all(trial.state == "failed" for trial in judgements):
            raise UserError(
                "\n".join(f"{plan.path}: {trial.cell.name} failed: {trial.message}" for trial in judgements)
            )
        trials += judgements
        for trial in judgements if run_cells else ():
            if trial.state == "stopped":  # the clone of a failed run is kept, with its checkpoints
                shutil.rmtree(CLONES / trial.cell.id, ignore_errors=True)
        if missing:
            print(*(progress(plan.search, trials, trial) for trial in judgements), sep="\n", flush=True)
            write_journal(plan.folder / JOURNAL, plan.path.stem, plan.search, trials)
    if run_cells:
        write_journal(plan.folder / JOURNAL, plan.path.stem, plan.search, trials)
        atomic_write(plan.folder / "best.md", f"{plan.search.question}\n\n{plan.report(trials)}")
        atomic_write(plan.folder / "runs.csv", runs_csv(plan.search, trials))
    return Found(plan, trials, ended, len(recorded - {trial.cell.id for trial in trials}))


def _failed(run: Run | None) -> bool:
    return run is not None and run.state == "failed"


@dataclass(frozen=True)
class Plan:
    """A search with the params.yaml that its runs change."""

    path: Path
    written: Search
    """As it is in the file."""
    search: Search
    """With the choices of conf/ replaced by their values."""
    params: dict[str, Any]
    read: set[str]
    """Dotted keys of params.yaml that its runs read; empty text for all."""

    @property
    def folder(self) -> Path:
        """Where the record and the results are."""
        return self.path.with_suffix("")

    def batch(self, trials: Sequence[Trial]) -> list[Proposal]:
        """What is proposed after these trials, within the budget of runs."""
        runs = self.search.budget.runs
        return propose(self.path.stem, self.search, trials)[: runs - len(trials) if runs else None]

    def run(self, cells: Sequence[Cell], trials: Sequence[Trial], run_cells: RunCells) -> list[Run]:
        """Run cells after these trials. Raises UnfinishedError where one has no result through no fault of its own."""
        rule = early_stop(self.search, trials, self.params)

        def stop_early(cell: Cell, curves: Curves) -> str:
            assert rule is not None
            points = [point for curve in self.search.curves for point in curves.get(curve, [])]
            stop = rule.stopped(curve_over_shares(self.search, cell, points, self.params))
            return stop[1] if stop else ""

        with self._clock():
            runs = run_cells(
                cells,
                title=f"search {self.path.stem}",
                targets=self.search.targets,
                reports=self.search.reports,
                curves=self.search.curves,
                record=self.folder / RECORD,
                stop_early=stop_early if rule else None,
            )
        unfinished = [
            f"{self.path}: {cell.name} ({cell.label}) has no result yet: {run.message}"
            for cell, run in zip(cells, runs, strict=True)
            if run.state not in ("finished", "failed")
        ]
        if unfinished:
            advice = "the same command continues with it; if it ends like this again and again, narrow `space`"
            raise UnfinishedError("\n".join([*unfinished, advice]))
        return runs

    def judged(self, trials: Sequence[Trial], batch: Sequence[Proposal], runs: Mapping[str, Run]) -> list[Trial]:
        """A batch that was proposed after these trials, with its runs.

        Raises UserError for a run that was made with other values than today's params.yaml gives.
        """
        for item in batch:
            run = runs[item.cell.id]
            if moved := run.params and item.cell.moved(run.params, self.params, self.read):
                raise UserError(
                    f"{self.folder / RECORD}: {item.cell.name} was made with another {PARAMS_FILE}: "
                    f"{', '.join(moved)}; put these values back, or move {self.folder} away to search anew"
                )
        return [judged(self.search, trials, item, runs[item.cell.id], self.params) for item in batch]

    def report(self, trials: Sequence[Trial]) -> str:
        """What these trials have shown, as Markdown."""
        return report(self.written, trials, self.params, importances(self.search, trials))

    def spent(self, trials: Sequence[Trial]) -> str:
        """Which budget of runs or compute is spent; empty text for none."""
        budget = self.search.budget
        if budget.runs and len(trials) >= budget.runs:
            return f"{budget.runs} runs are spent"
        if budget.compute:
            done = [trial.run for trial in trials if trial.state == "finished"]
            flop = sum(number_of(run, budget.compute.source) or 0.0 for run in done)
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


def require_name(path: Path) -> None:
    """Raise UserError where git takes no experiment with the file's name: its runs could not be kept."""
    reference = f"refs/exps/{path.stem}-0001"
    if path.stem.startswith("-") or not git(Path(), "check-ref-format", "--normalize", reference, check=False):
        raise UserError(
            f"{path}: its runs are DVC experiments of this name, and git takes no `{path.stem}`; give the file a name "
            "of letters, digits, `-` and `_`"
        )


def read_plan(name: str) -> Plan:
    """Read the file and try every bound and every choice on params.yaml. Raises UserError."""
    written, path, params = read_search(name), search_path(name), read_params_file()
    require_name(path)
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
    return Plan(path, written, search, params, reached.params)
