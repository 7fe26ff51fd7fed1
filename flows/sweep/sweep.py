"""`parrotflow sweep NAME`: run the cells of an experiment that have no current result."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flows.experiments.cells import Cell, cells_of
from flows.experiments.experiment import SettingName, results_folder
from flows.experiments.results import compute
from flows.experiments.runs import RECORD, Batch, Run, RunCells
from flows.experiments.yaml_file import bare_name
from flows.plan.settings import check_params
from flows.sweep import clone
from flows.sweep.plan import require_unguarded
from flows.sweep.run_cells import Standing, standings

CHECKED = Path(".parrotflow/sweep-check")
"""Where `--check` computes everything again; nothing in it comes from the project's caches."""


def grid(name: str, size: SettingName) -> Batch:
    """The cells of an experiment. Raises UserError on faults of its file or params.yaml."""
    check_params()
    # Without any run, else hours of work end with a table of a level that the grid does not have.
    experiment = compute(name, size, []).data.experiment
    require_unguarded(experiment.targets)
    cells = cells_of(name, experiment, size)
    record, title = results_folder(name, size) / RECORD, f"sweep {bare_name(name)}"
    return Batch(title, cells, experiment.targets, experiment.reports, experiment.curve_sources, record)


def planned(
    name: str, size: SettingName, commit_of: Callable[[Sequence[str], Sequence[Cell]], str]
) -> list[tuple[Cell, Standing]]:
    """Each cell with where it stands.

    `commit_of` gives the commit that these cells with these targets are made from, or raises the UserError that the
    sweep itself would end with.
    """
    batch = grid(name, size)
    commit_of(batch.targets, batch.cells)
    standing = standings(batch)
    return [(cell, standing[cell.id]) for cell in batch.cells]


def sweep(
    name: str,
    size: SettingName,
    *,
    retry: bool = False,
    runner: RunCells,
    options: str = "",
    wait: bool = False,
) -> list[str]:
    """Run the cells that are not up to date. Returns what to say of those that have no result; nothing if all have one.

    A cell that failed at the commit that is still checked out runs again only with `retry`. `runner` runs
    them; `options` are those of the command that say so.
    """
    batch = grid(name, size)
    given_up = {cell: found.run for cell, found in standings(batch).items() if found.run and found.failed and not retry}
    runs = runner(replace(batch, cells=[cell for cell in batch.cells if cell.id not in given_up]), wait=wait)
    by_cell = given_up | {run.cell: run for run in runs}
    missing = [(cell, by_cell[cell.id]) for cell in batch.cells if by_cell[cell.id].state != "finished"]
    lines = [f"{cell.label} {run.state}: {run.message}" for cell, run in missing]
    if missing:
        again = "" if any(run.state == "cancelled" for _, run in missing) else " --retry"
        count = f"{len(missing)} of {len(batch.cells)} cells have no result"
        lines.append(f"{count}; `parrotflow sweep {name}{again}{options}` tries them again")
    return lines


def compute_again(name: str, size: SettingName, *, runner: RunCells, wait: bool = False) -> list[Run]:
    """Compute every cell again, from the data on; the runs. Continues after a kill, until `forget_check`."""
    batch = grid(name, size)
    folder = _checked(name, size) / clone.head_commit(batch.targets, batch.cells)[:12]
    again = replace(batch, title=f"{batch.title} --check", record=folder / RECORD)
    return runner(again, clones=folder, alone=True, wait=wait)


def forget_check(name: str, size: SettingName) -> None:
    """Remove what `compute_again` has left."""
    shutil.rmtree(_checked(name, size), ignore_errors=True)


def _checked(name: str, size: SettingName) -> Path:
    return CHECKED / bare_name(name) / size
