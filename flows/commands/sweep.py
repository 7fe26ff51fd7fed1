"""`parrotflow sweep`."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from flows.experiments.experiment import ExperimentName
from flows.experiments.record import Run
from flows.experiments.results import table
from flows.run.outcome import AsJson
from flows.run.programs import stage_environment
from flows.run.server import start_server
from flows.sweep import run_cells as sweeps
from flows.sweep.jobs import Batch
from stages.runtime.errors import UserError


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
    if dry:
        cells = sweeps.planned(name)
        for cell, standing in cells:
            print(f"{cell.label}: {standing.reason or 'up to date'}")
        failed = 0 if retry else sum(standing.failed for _, standing in cells)
        waiting = f"; {failed} failed, `--retry` runs them again" if failed else ""
        wanted = sum(bool(standing.reason) for _, standing in cells) - failed
        print(f"{wanted} of {len(cells)} cells would run{waiting}")
        return {"to_run": wanted, "cells": [{"cell": one.label, "why": why.reason or ""} for one, why in cells]}
    if at_once < 1 or (pool and at_once > 1):
        raise UserError("--at-once: expected 1 or more, and not with --pool")

    run_cells = partial(_run_cells, pool=pool, at_once=at_once)
    missing = sweeps.run_sweep(name, run_cells=run_cells, retry=retry, wait=wait)
    facts = table(name)
    if missing:
        print("\n".join(missing))
    return facts | {"exit_code": int(bool(missing)), "error": "; ".join(missing)}


def _run_cells(
    batch: Batch, head: str, keys: Mapping[str, Mapping[str, str]], *, pool: bool, at_once: int
) -> dict[str, Run]:
    """Run the cells of a sweep at the commit `head` in one flow run; return their runs by the cells' ids."""
    environment, server = stage_environment(batch.targets), start_server()
    server.reach_directly()
    # These import Prefect, which takes seconds, while the server starts.
    if pool:
        from flows.sweep.pool import run_cells_on_pool

        return run_cells_on_pool(batch, head, keys, server)
    from flows.sweep.local import run_cells_here

    return run_cells_here(batch, head, keys, environment, server, at_once)
