"""`parrotflow sweep NAME`: run the cells of an experiment that have no current result."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from flows.dvc_repo.reach import reach
from flows.experiments.cells import Cell, cells_of, require_written
from flows.experiments.experiment import Experiment, SettingName, read_experiment, results_folder
from flows.experiments.results import compute
from flows.experiments.runs import RECORD, Run, RunCells
from flows.experiments.yaml_file import bare_name
from flows.plan.params import check_params
from flows.sweep import clone
from flows.sweep.plan import require_unguarded
from flows.sweep.standing import Standing, standings

CHECKED = Path(".parrotflow/sweep-check")
"""Where `--check` computes everything again; nothing in it comes from the project's caches."""


def grid(name: str, size: SettingName) -> tuple[Experiment, list[Cell], Path]:
    """The experiment, its cells and the path of its record. Raises UserError on faults of its file or params.yaml."""
    check_params()
    experiment = read_experiment(name)
    require_written(name, experiment, reach(experiment.targets))
    require_unguarded(experiment.targets)
    cells = cells_of(name, experiment, size)
    compute(name, size, [])  # else hours of work end with a table of a level that the grid does not have
    return experiment, cells, results_folder(name, size) / RECORD


def _standings(experiment: Experiment, cells: Sequence[Cell], record: Path) -> dict[str, Standing]:
    wanted = experiment.reports | experiment.curve_sources
    return standings(cells, record, experiment.targets, wanted)


def planned(
    name: str, size: SettingName, commit_of: Callable[[Sequence[str], Sequence[Cell]], str]
) -> list[tuple[Cell, Standing]]:
    """Each cell with where it stands.

    `commit_of` gives the commit that these cells with these targets are made from, or raises the UserError that the
    sweep itself would end with.
    """
    experiment, cells, record = grid(name, size)
    commit_of(experiment.targets, cells)
    standing = _standings(experiment, cells, record)
    return [(cell, standing[cell.id]) for cell in cells]


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
    experiment, cells, record = grid(name, size)
    given_up = {
        cell: found.run
        for cell, found in _standings(experiment, cells, record).items()
        if found.run and found.failed and not retry
    }
    runs = runner(
        [cell for cell in cells if cell.id not in given_up],
        title=f"sweep {bare_name(name)}",
        targets=experiment.targets,
        reports=experiment.reports,
        curves=experiment.curve_sources,
        record=record,
        wait=wait,
    )
    by_cell = given_up | {run.cell: run for run in runs}
    missing = [(cell, by_cell[cell.id]) for cell in cells if by_cell[cell.id].state != "finished"]
    lines = [f"{cell.label} {run.state}: {run.message}" for cell, run in missing]
    if missing:
        again = "" if any(run.state == "cancelled" for _, run in missing) else " --retry"
        count = f"{len(missing)} of {len(cells)} cells have no result"
        lines.append(f"{count}; `parrotflow sweep {name}{again}{options}` tries them again")
    return lines


def compute_again(name: str, size: SettingName, *, runner: RunCells, wait: bool = False) -> list[Run]:
    """Compute every cell again, from the data on; the runs. Continues after a kill, until `forget_check`."""
    experiment, cells, _ = grid(name, size)
    folder = _checked(name, size) / clone.head_commit(experiment.targets, cells)[:12]
    return runner(
        cells,
        title=f"sweep {bare_name(name)} --check",
        targets=experiment.targets,
        reports=experiment.reports,
        curves=experiment.curve_sources,
        record=folder / RECORD,
        clones=folder,
        alone=True,
        wait=wait,
    )


def forget_check(name: str, size: SettingName) -> None:
    """Remove what `compute_again` has left."""
    shutil.rmtree(_checked(name, size), ignore_errors=True)


def _checked(name: str, size: SettingName) -> Path:
    return CHECKED / bare_name(name) / size
