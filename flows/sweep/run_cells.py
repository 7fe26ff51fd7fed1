"""`parrotflow sweep NAME`: which cells of an experiment have no current result; run here, and recorded.

The project stays locked, so no other run of it takes the same cores.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flows.experiments.cells import Cell, cells_of, read_experiment
from flows.experiments.experiment import results_folder
from flows.experiments.results import compute
from flows.experiments.runs import RECORD, Batch, Run, RunCells, last_runs
from flows.experiments.yaml_file import bare_name
from flows.plan.graph import make_plan
from flows.plan.settings import check_params
from flows.run.locks import run_lock
from flows.sweep import clone
from flows.sweep.jobs import Ended, Job, carry_out, computed_contents, jobs_of
from flows.sweep.plan import Standing, known_and_to_run, standings, working_in
from flows.sweep.processes import Processes, cores, gpus, shares_of
from flows.sweep.progress import Progress
from stages.runtime.entry import UserError
from stages.runtime.section import PARAMS_FILE, read_params_file

CHECKED = Path(".parrotflow/sweep-check")
"""Where `--check` computes everything again; nothing in it comes from the project's caches."""


def grid(name: str) -> Batch:
    """The cells of an experiment. Raises UserError on faults of its file or params.yaml."""
    check_params()
    # Without any run, else hours of work end with a table of a level that the grid does not have.
    experiment = compute(name, []).data.experiment
    make_plan(experiment.targets)  # refuses unknown targets
    cells = cells_of(name, experiment)
    record, title = results_folder(name) / RECORD, f"sweep {bare_name(name)}"
    return Batch(title, cells, experiment.targets, experiment.reports, experiment.curve_sources, record)


def planned(name: str, commit_of: Callable[[Sequence[str], Sequence[Cell]], str]) -> list[tuple[Cell, Standing]]:
    """Each cell with where it stands.

    `commit_of` gives the commit that these cells with these targets are made from, or raises the UserError that the
    sweep itself would end with.
    """
    batch = grid(name)
    commit_of(batch.targets, batch.cells)
    standing = standings(batch)
    return [(cell, standing[cell.id]) for cell in batch.cells]


def sweep(name: str, *, retry: bool = False, runner: RunCells, options: str = "", wait: bool = False) -> list[str]:
    """Run the cells that are not up to date. Returns what to say of those that have no result; nothing if all have one.

    A cell that failed at the commit that is still checked out runs again only with `retry`. `runner` runs
    them; `options` are those of the command that say so.
    """
    while True:
        batch = grid(name)
        axes = read_experiment(name).axes
        standing = standings(batch)
        given_up = {cell: found.run for cell, found in standing.items() if found.run and found.failed and not retry}
        runs = runner(replace(batch, cells=[cell for cell in batch.cells if cell.id not in given_up]), wait=wait)
        by_cell = given_up | {run.cell: run for run in runs}
        retry = False  # else a cell that fails again would be tried for every level that is drawn after it
        if read_experiment(name).axes == axes:  # else TPE has drawn the next level from these results
            break
    missing = [(cell, by_cell[cell.id]) for cell in batch.cells if by_cell[cell.id].state != "finished"]
    lines = [f"{cell.label} {run.state}: {run.message}" for cell, run in missing]
    if missing:
        again = "" if any(run.state == "cancelled" for _, run in missing) else " --retry"
        count = f"{len(missing)} of {len(batch.cells)} cells have no result"
        lines.append(f"{count}; `parrotflow sweep {name}{again}{options}` tries them again")
    return lines


def compute_again(name: str, *, runner: RunCells, wait: bool = False) -> list[Run]:
    """Compute every cell again, from the data on; the runs. Continues after a kill, until `forget_check`."""
    batch = grid(name)
    folder = _checked(name) / clone.head_commit(batch.targets, batch.cells)[:12]
    again = replace(batch, title=f"{batch.title} --check", record=folder / RECORD)
    return runner(again, clones=folder, alone=True, wait=wait)


def forget_check(name: str) -> None:
    """Remove what `compute_again` has left."""
    shutil.rmtree(_checked(name), ignore_errors=True)


def _checked(name: str) -> Path:
    return CHECKED / bare_name(name)


def run_cells(
    batch: Batch,
    *,
    at_once: int = 1,
    clones: Path = clone.CLONES,
    alone: bool = False,
    on_worker: bool = False,
    wait: bool = False,
) -> list[Run]:
    """Run the cells that the record has no current result of; the runs of all cells, in their order.

    `at_once` cells run at a time, each with its share of the GPUs, or else of the cores. A cell is recorded as soon as
    it has ended, a failed one with its message; its clone then stays in `clones`. With `alone` nothing comes from the
    project's caches, and no DVC experiment is made. With `on_worker` missing results come from the DVC remote, no DVC
    experiment is made, and the clones stay: the worker's flow sends off what they hold.

    Raises UserError before anything runs, StoppedError after Ctrl-C or a cancellation.
    """
    with run_lock(batch.title, wait=wait):
        head = clone.head_commit(batch.targets, batch.cells)
        known, to_run = known_and_to_run(batch)
        finished = {cell for cell, run in last_runs(batch.record).items() if run.state == "finished"}
        clone.remove_leftovers(clones.absolute(), finished - to_run.keys())
        if not to_run:
            return [known[cell.id] for cell in batch.cells]
        print(f"{batch.title}: preparing a clone for each of {len(to_run)} cells ...", flush=True)
        cache, own_cache = clone.project_cache(), clones.absolute() / "cache" if alone else None
        folders: dict[str, Path] = {}
        contents: dict[str, dict[str, str]] = {}
        for number, (name, cell) in enumerate(to_run.items(), start=1):
            print(f"{batch.title}: clone {number} of {len(to_run)}: {cell.label}", flush=True)
            folders[name] = clone.prepare(cell, head, clones / name, own_cache, cache=cache)
            with working_in(folders[name]):
                contents[name] = computed_contents(batch.targets)
        clone.require_same_bytes(next(iter(folders.values())), batch.targets)
        names = {name: cell.name for name, cell in to_run.items()}
        jobs, runs = jobs_of(contents, names, batch.targets, head), dict[str, Run]()

        def record(job: Job, ended: Ended) -> Ended:
            """Make a DVC experiment of a cell that has ended well, record it and remove its clone."""
            if job.shared:
                return ended
            (name,), commit, texts = job.cells, "", dict[str, str]()
            if ended.state == "finished":
                try:
                    if not (alone or on_worker):
                        commit = clone.save_experiment(folders[name], to_run[name].name, batch.targets)
                except UserError as error:
                    ended = Ended("cancelled", str(error))
                else:
                    texts = clone.texts_of(folders[name], batch.files)
            params = read_params_file(folders[name] / PARAMS_FILE)
            run = batch.end(to_run[name], ended.state, head, params, commit=commit, texts=texts, message=ended.message)
            runs[name] = run
            progress.recorded(run)
            if ended.state == "finished" and not on_worker:
                clone.discard(clones.absolute() / name)
            return ended

        with Progress(batch.title, to_run, len(known)) as progress:
            processes = Processes(folders, shares_of(at_once, gpus(), cores()), progress, pull=on_worker)
            carry_out(jobs, processes.start, record, title=batch.title)
    all_runs = known | runs
    return [all_runs[cell.id] for cell in batch.cells]
