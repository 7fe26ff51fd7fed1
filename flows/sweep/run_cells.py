"""`parrotflow sweep NAME`: run and record the cells of an experiment that have no current result.

The project stays locked, so no other run of it uses the same cores.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.experiments.cells import cells_of, check_cells
from flows.experiments.experiment import ExperimentName, bare_name, experiment_path, results_folder
from flows.experiments.record import RUNS_FILE, Run
from flows.experiments.results import compute, table
from flows.run.locks import run_lock
from flows.run.outcome import AsJson
from flows.run.programs import stage_environment
from flows.run.server import start_server
from flows.sweep import clone
from flows.sweep.jobs import Batch
from flows.sweep.keys import CellStatus, cell_statuses, facts_of_targets, keys_of_cells
from stages.runtime.errors import UserError
from stages.runtime.preflight import check_params
from stages.runtime.section import read_params_file


def sweep(
    name: ExperimentName,
    /,
    *,
    retry: bool = False,
    at_once: int = 1,
    pool: bool = False,
    dry: bool = False,
    wait: bool = False,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Run the cells of an experiment that have no current result, and make its tables and figures.

    Each cell becomes a DVC experiment. The same command continues after Ctrl-C or a kill. If you add a level or a seed,
    only the new cells run.

    Parameters
    ----------
    name
        A file in experiments/ without its suffix, or a path.
    retry
        Also run the cells that failed.
    at_once
        Run this many cells at a time, each with its share of the GPUs, or of the cores if there is no GPU.
    pool
        Run the cells on workers of a Prefect work pool (that of the deployment `sweep-cell`), not on this machine.
    dry
        Only show which cells would run, and why.
    wait
        Wait for another run in this folder instead of refusing.
    """
    if at_once < 1 or (pool and at_once > 1):
        raise UserError("--at-once: expected 1 or more, and not with --pool")
    with nullcontext() if dry else run_lock(f"sweep {bare_name(name)}", wait=wait):
        batch = grid(name)
        head = clone.head_commit()
        keys = keys_of_cells(batch.cells, batch.targets, head)
        statuses = cell_statuses(batch, keys)
        if dry:
            return show_statuses(batch, statuses, retry=retry)
        kept = [status.run for status in statuses.values() if not status.reason or (status.failed and not retry)]
        runs = {run.cell: run for run in kept if run}
        clone.remove_leftovers(run.cell for run in runs.values() if run.state == "finished")
        if left := [cell for cell in batch.cells if cell.id not in runs]:
            print(f"sweep {batch.name}: {len(left)} cells to run; {len(runs)} more are recorded already", flush=True)
            runs |= run_batch(replace(batch, cells=left), head, keys, pool=pool, at_once=at_once)
    ended = ((cell.label, runs[cell.id]) for cell in batch.cells)
    missing = [f"{label} {run.state}: {run.message}" for label, run in ended if run.state != "finished"]
    facts = table(name)
    if missing:
        again = "" if any(run.state == "cancelled" for run in runs.values()) else " with --retry"
        count = f"{len(missing)} of {len(batch.cells)} cells have no result"
        missing.append(f"{count}; run the same command{again} to retry them")
        print("\n".join(missing))
    return facts | {"exit_code": int(bool(missing)), "error": "; ".join(missing)}


def grid(name: str) -> Batch:
    """Return the cells of an experiment. Raises UserError on faults of its file or params.yaml."""
    check_params()
    # Finds a table of a level that the grid does not have before hours of work.
    experiment, path = compute(name, []).data.experiment, experiment_path(name)
    cells, params = cells_of(name, experiment), read_params_file()
    check_cells(path, cells, params)
    facts, record = facts_of_targets(experiment.targets, path), results_folder(name) / RUNS_FILE
    reports, curves = experiment.reports, experiment.curve_sources
    batch = Batch(bare_name(name), cells, experiment.targets, reports, curves, facts, params, record)
    for file in map(Path, sorted(batch.files)):
        if not facts.outs & {file, *file.parents}:
            outs = ", ".join(sorted(str(out) for out in facts.outs if out.suffix in (".json", ".tsv", ".csv")))
            raise UserError(f"{path}: {file}: neither a target nor a stage upstream writes it; they write {outs}")
    return batch


def show_statuses(batch: Batch, statuses: Mapping[str, CellStatus], *, retry: bool) -> dict[str, Any]:
    """Print which cells would run, and why; return the same for `--json`."""
    cells = [{"cell": cell.label, "why": statuses[cell.id].reason} for cell in batch.cells]
    for cell in cells:
        print(f"{cell['cell']}: {cell['why'] or 'up to date'}")
    failed = 0 if retry else sum(status.failed for status in statuses.values())
    waiting = f"; {failed} failed, `--retry` runs them again" if failed else ""
    to_run = sum(bool(status.reason) for status in statuses.values()) - failed
    print(f"{to_run} of {len(statuses)} cells would run{waiting}")
    return {"to_run": to_run, "cells": cells}


def run_batch(
    batch: Batch, head: str, keys: Mapping[str, Mapping[str, str]], *, pool: bool, at_once: int
) -> dict[str, Run]:
    """Run cells at the commit `head` in one flow run; return their runs by cell id. `keys` are of their stages."""
    environment, server = stage_environment(batch.targets), start_server()
    server.reach_directly()
    # These import Prefect, which takes seconds, while the server starts.
    if pool:
        from flows.sweep.pool import run_cells_on_pool

        return run_cells_on_pool(batch, head, keys, server)
    from flows.sweep.local import run_cells_here

    return run_cells_here(batch, head, keys, environment, server, at_once)
