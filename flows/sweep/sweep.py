"""`parrotflow sweep NAME`: run the cells of an experiment that have no current result, and make its tables of them."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from flows.dvc_repo.experiments import reach
from flows.environment import STATE_DIR
from flows.experiments import results as made
from flows.experiments.cells import Cell, cells_of
from flows.experiments.experiment import Experiment, SettingName, read_experiment
from flows.experiments.rendering import markdown
from flows.experiments.runs import Run, recorded_runs
from flows.experiments.stored import results_folder
from flows.plan.params import check_params
from flows.sweep import clone
from flows.sweep.run_cells import reasons_to_run, run_cells

CHECKED = STATE_DIR / "sweep-check"
"""Where `--check` recomputes; nothing in it comes from the project's caches."""


def grid(name: str, size: SettingName) -> tuple[Experiment, list[Cell], Path]:
    """The experiment, its cells and the path of its record. Raises UserError on faults of its file or params.yaml."""
    check_params()
    experiment = read_experiment(name)
    made.require_written(name, experiment, reach(experiment.targets))
    return experiment, cells_of(name, experiment, size), results_folder(name, size) / made.RECORD


def planned(name: str, size: SettingName) -> list[tuple[Cell, str]]:
    """Each cell with the reason for which it would run; an empty text where it is up to date."""
    experiment, cells, record = grid(name, size)
    reasons = reasons_to_run(cells, record, experiment.targets)
    return [(cell, reasons[cell.id]) for cell in cells]


def sweep(
    name: str, size: SettingName, *, retry: bool = False, wait: bool = False, flow_run: str | None = None
) -> tuple[list[str], bool]:
    """Run what is not up to date and write the tables. Returns what to print, and whether every cell has a result.

    A cell that failed at the commit that is still checked out runs again only with `retry`.
    """
    experiment, cells, record = grid(name, size)
    runs = _run(name, experiment, cells, record, retry=retry, wait=wait, flow_run=flow_run)
    results = made.compute(name, size)
    written = made.write_results(name, size, results)
    missing = [(cell, run) for cell, run in zip(cells, runs, strict=True) if run.state != "finished"]
    lines = [*map(markdown, results.tables), *made.summary(results), *map(str, written)]
    lines += [f"{cell.label} {run.state}: {run.message}" for cell, run in missing]
    if missing:
        again = "" if any(run.state == "cancelled" for _, run in missing) else " --retry"
        lines.append(
            f"{len(missing)} of {len(cells)} cells have no result; `parrotflow sweep {name}{again}` tries them"
        )
    return lines, not missing


def _run(
    name: str,
    experiment: Experiment,
    cells: Sequence[Cell],
    record: Path,
    *,
    retry: bool,
    wait: bool,
    flow_run: str | None,
) -> list[Run]:
    before = {run.cell: run for run in recorded_runs(record)}
    reasons = reasons_to_run(cells, record, experiment.targets)
    given_up = {
        cell.id: before[cell.id]
        for cell in cells
        if not retry and cell.id in before and reasons[cell.id].startswith("failed: ")
    }
    runs = run_cells(
        [cell for cell in cells if cell.id not in given_up],
        title=f"sweep {Path(name).stem}",
        targets=experiment.targets,
        reports=experiment.reports,
        curves=experiment.curve_sources,
        record=record,
        wait=wait,
        flow_run=flow_run,
    )
    by_cell = given_up | {run.cell: run for run in runs}
    return [by_cell[cell.id] for cell in cells]


def check(name: str, size: SettingName, *, wait: bool = False) -> tuple[list[str], bool]:
    """Compute every cell again, from the data on, and compare the tables with the stored ones, entry by entry.

    Returns what to print, and whether no entry is different. Continues after a kill.
    """
    experiment, cells, _ = grid(name, size)
    folder = CHECKED / Path(name).stem / size / clone.head_commit(experiment.targets)[:12]
    runs = run_cells(
        cells,
        title=f"sweep {Path(name).stem} --check",
        targets=experiment.targets,
        reports=experiment.reports,
        curves=experiment.curve_sources,
        record=folder / made.RECORD,
        clones=folder,
        alone=True,
        wait=wait,
    )
    compared = made.check(name, size, made.compute(name, size, runs))
    shutil.rmtree(folder, ignore_errors=True)
    return made.comparison(compared)
