"""`parrotflow sweep NAME`: which cells of an experiment have no current result; they are run and recorded.

The project stays locked, so no other run of it takes the same cores.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from flows.experiments.cells import Cell, cells_of, check_cells
from flows.experiments.experiment import bare_name, experiment_path, results_folder
from flows.experiments.record import RUNS_FILE, Run
from flows.experiments.results import compute
from flows.run.locks import run_lock
from flows.sweep import clone
from flows.sweep.jobs import Batch
from flows.sweep.keys import CellStatus, cell_statuses, facts_of_targets, keys_of_cells
from stages.runtime.errors import UserError
from stages.runtime.preflight import check_params
from stages.runtime.section import read_params_file

RunCells = Callable[[Batch, str, Mapping[str, Mapping[str, str]]], dict[str, Run]]
"""Runs the cells of a batch at a commit and records them, given the keys of their stages."""


def grid(name: str) -> Batch:
    """The cells of an experiment. Raises UserError on faults of its file or params.yaml."""
    check_params()
    # Without any run, else hours of work end with a table of a level that the grid does not have.
    experiment, path = compute(name, []).data.experiment, experiment_path(name)
    cells, params = cells_of(name, experiment), read_params_file()
    check_cells(path, cells, params)
    facts, record = facts_of_targets(experiment.targets, path), results_folder(name) / RUNS_FILE
    reports, curves = experiment.reports, experiment.curve_sources
    batch = Batch(bare_name(name), cells, experiment.targets, reports, curves, facts, params, record)
    for file in map(Path, sorted(batch.files)):
        if not facts.outs & {file, *file.parents}:
            there = ", ".join(sorted(str(out) for out in facts.outs if out.suffix in (".json", ".tsv", ".csv")))
            raise UserError(f"{path}: {file}: neither a target nor a stage upstream writes it; they write {there}")
    return batch


def planned(name: str) -> list[tuple[Cell, CellStatus]]:
    """Return the state of each cell. Raises the UserError that the sweep itself would end with."""
    batch = grid(name)
    standing = cell_statuses(batch, keys_of_cells(batch.cells, batch.targets, clone.head_commit()))
    return [(cell, standing[cell.id]) for cell in batch.cells]


def run_sweep(name: str, *, run_cells: RunCells, retry: bool = False, wait: bool = False) -> list[str]:
    """Run the cells that are not up to date. Returns a line for each that still has no result, and what to do.

    A cell that failed runs again only with `retry`, or once one of its inputs has changed.
    """
    with run_lock(f"sweep {bare_name(name)}", wait=wait):
        batch = grid(name)
        runs = _brought_up_to_date(batch, run_cells, retry=retry)
    missing = [(cell, runs[cell.id]) for cell in batch.cells if runs[cell.id].state != "finished"]
    lines = [f"{cell.label} {run.state}: {run.message}" for cell, run in missing]
    if missing:
        again = "" if any(run.state == "cancelled" for _, run in missing) else " with --retry"
        count = f"{len(missing)} of {len(batch.cells)} cells have no result"
        lines.append(f"{count}; run the same command{again} to retry them")
    return lines


def _brought_up_to_date(batch: Batch, run: RunCells, *, retry: bool) -> dict[str, Run]:
    """The run of each cell, by its id, after `run` has run those that are not current."""
    head = clone.head_commit()
    keys = keys_of_cells(batch.cells, batch.targets, head)
    standing = cell_statuses(batch, keys)
    kept = {id_: one.run for id_, one in standing.items() if one.run and (not one.reason or (one.failed and not retry))}
    finished = {id_ for id_, run in kept.items() if run.state == "finished"}
    clone.remove_leftovers(finished)
    cells = [cell for cell in batch.cells if cell.id not in kept]
    if cells:
        print(f"sweep {batch.name}: {len(cells)} cells to run; {len(kept)} more are recorded already", flush=True)
    return kept | (run(replace(batch, cells=cells), head, keys) if cells else {})
