"""`parrotflow sweep NAME`: which cells of an experiment have no current result; run here, and recorded.

The project stays locked, so no other run of it takes the same cores.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.experiments.cells import Cell, cells_of, check_cells, read_experiment
from flows.experiments.experiment import bare_name, experiment_path, results_folder
from flows.experiments.results import compute
from flows.experiments.runs import RECORD, Run, append_run, reports_and_curves
from flows.run.locks import run_lock
from flows.sweep import clone
from flows.sweep.jobs import Ended, Job, Progress, carry_out, jobs_of
from flows.sweep.keys import Standing, keys_of_cells, sections_and_outs, standings
from flows.sweep.processes import Processes, cores, gpus, shares_of
from stages.runtime.errors import UserError
from stages.runtime.preflight import check_params
from stages.runtime.section import PARAMS_FILE, read_params_file


@dataclass(frozen=True)
class Batch:
    """Cells to run, and what is recorded of their runs."""

    title: str
    """Shown to the user."""
    cells: Sequence[Cell]
    targets: Sequence[str]
    """The stages at which a run ends."""
    reports: Collection[str]
    """JSON files."""
    curves: Collection[str]
    """FILE:COLUMN."""
    sections: Collection[str]
    """Sections of params.yaml that the stages read."""
    record: Path

    @property
    def files(self) -> set[str]:
        """The files of the reports and curves."""
        return {*self.reports, *(location.partition(":")[0] for location in self.curves)}

    def end(
        self,
        cell: Cell,
        ended: Ended,
        baseline: str,
        params: Mapping[str, Any],
        keys: Mapping[str, str],
        *,
        commit: str = "",
        texts: Mapping[str, str] | None = None,
    ) -> Run:
        """Return the run of a cell that has ended, and record it unless it was cancelled.

        `texts` are those of the files that hold the reports and curves.
        """
        values, points = reports_and_curves(texts or {}, self.reports, self.curves)
        run = Run(
            cell=cell.id,
            state=ended.state,
            experiment=cell.name if commit else "",
            commit=commit,
            baseline=baseline,
            params={name: section for name, section in params.items() if name in self.sections},
            reports=values,
            curves=points,
            ended=datetime.now(UTC).isoformat(timespec="seconds"),
            message=ended.message,
            keys=dict(keys),
        )
        if ended.state != "cancelled":
            append_run(self.record, run)
        return run


RunCells = Callable[..., dict[str, Run]]
"""Runs the cells of a batch and records them: `run_cells` here, or `run_cells_on_pool` (pool.py)."""


def grid(name: str) -> Batch:
    """The cells of an experiment. Raises UserError on faults of its file or params.yaml."""
    check_params()
    # Without any run, else hours of work end with a table of a level that the grid does not have.
    experiment, path = compute(name, []).data.experiment, experiment_path(name)
    cells = cells_of(name, experiment)
    check_cells(path, cells, read_params_file())
    sections, outs = sections_and_outs(experiment.targets, path)
    curves = {source.partition(":")[0] for source in experiment.curve_sources}
    for file in map(Path, sorted(experiment.reports | curves)):
        if not outs & {file, *file.parents}:
            there = ", ".join(sorted(str(out) for out in outs if out.suffix in (".json", ".tsv", ".csv")))
            raise UserError(f"{path}: {file}: the targets and the stages before them do not write it, but {there}")
    record, title = results_folder(name) / RECORD, f"sweep {bare_name(name)}"
    return Batch(title, cells, experiment.targets, experiment.reports, experiment.curve_sources, sections, record)


def planned(name: str) -> list[tuple[Cell, Standing]]:
    """Return the state of each cell. Raises the UserError that the sweep itself would end with."""
    batch = grid(name)
    standing = standings(batch, keys_of_cells(batch.cells, batch.targets, clone.head_commit()))
    return [(cell, standing[cell.id]) for cell in batch.cells]


def sweep(name: str, *, retry: bool = False, runner: RunCells, wait: bool = False) -> list[str]:
    """Run the cells that are not up to date. Returns a line for each that still has no result, and what to do.

    A cell that failed runs again only with `retry`, or once one of its inputs has changed.
    """
    with run_lock(f"sweep {bare_name(name)}", wait=wait):
        while True:
            batch = grid(name)
            axes = read_experiment(name).axes
            runs = _brought_up_to_date(batch, runner, retry=retry)
            retry = False  # else a cell that fails again would be tried for every level that is drawn after it
            if read_experiment(name).axes == axes:  # else TPE has drawn the next level from these results
                break
    missing = [(cell, runs[cell.id]) for cell in batch.cells if runs[cell.id].state != "finished"]
    lines = [f"{cell.label} {run.state}: {run.message}" for cell, run in missing]
    if missing:
        again = "" if any(run.state == "cancelled" for _, run in missing) else " with --retry"
        count = f"{len(missing)} of {len(batch.cells)} cells have no result"
        lines.append(f"{count}; the same command{again} tries them again")
    return lines


def _brought_up_to_date(batch: Batch, runner: RunCells, *, retry: bool) -> dict[str, Run]:
    """The run of each cell, by its id, after `runner` has run those that are not current."""
    head = clone.head_commit()
    keys = keys_of_cells(batch.cells, batch.targets, head)
    standing = standings(batch, keys)
    kept = {id_: one.run for id_, one in standing.items() if one.run and (not one.reason or (one.failed and not retry))}
    finished = {id_ for id_, run in kept.items() if run.state == "finished"}
    clone.remove_leftovers(finished)
    cells = [cell for cell in batch.cells if cell.id not in kept]
    if cells:
        print(f"{batch.title}: {len(cells)} cells to run; {len(kept)} more are recorded already", flush=True)
    return kept | (runner(replace(batch, cells=cells), head, keys) if cells else {})


def run_cells(
    batch: Batch,
    head: str,
    keys: Mapping[str, Mapping[str, str]],
    *,
    at_once: int = 1,
) -> dict[str, Run]:
    """Run cells at the commit `head`, and record each as soon as it has ended; their runs, by their ids.

    `keys` are those of the cells' stages. `at_once` cells run at a time, each with its share of the GPUs, or else of
    the cores. The clone of a failed one stays.

    Raises UserError before anything runs, StoppedError after Ctrl-C or a cancellation.
    """
    cells = {cell.id: cell for cell in batch.cells}
    cache, folders = clone.project_cache(), {}
    for number, (id_, cell) in enumerate(cells.items(), start=1):
        print(f"{batch.title}: clone {number} of {len(cells)}: {cell.label}", flush=True)
        folders[id_] = clone.prepare(cell, head, clone.CLONES / id_, cache=cache)
    jobs, runs = jobs_of(batch, keys, head), dict[str, Run]()

    def record(job: Job, ended: Ended) -> Ended:
        """Make a DVC experiment of a cell that has ended well, record it and remove its clone."""
        if job.shared:
            return ended
        (id_,), commit, texts = job.cells, "", dict[str, str]()
        cell, folder = cells[id_], folders[id_]
        if ended.state == "finished":
            texts = clone.texts_of(folder, batch.files)
            try:
                commit = clone.save_experiment(folder, cell.name, batch.targets)
            except UserError as error:
                ended = Ended("cancelled", str(error))
        params = read_params_file(folder / PARAMS_FILE)
        runs[id_] = batch.end(cell, ended, head, params, keys[id_], commit=commit, texts=texts)
        progress.recorded(runs[id_])
        if ended.state == "finished":
            clone.discard(clone.CLONES.absolute() / id_)
        return ended

    with Progress(batch.title, cells) as progress:
        processes = Processes(folders, shares_of(at_once, gpus(), cores()), progress)
        carry_out(jobs, processes.start, record, progress)
    return runs
