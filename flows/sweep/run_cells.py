"""`parrotflow sweep NAME`: which cells of an experiment have no current result; run here, and recorded.

The stages of all cells are tasks of one flow run, which share its slots and resources. The project stays locked, so no
other run of it takes the same cores.
"""

import contextlib
import shutil
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.experiments.cells import Cell, cells_of, read_experiment
from flows.experiments.experiment import results_folder
from flows.experiments.results import compute
from flows.experiments.runs import RECORD, Batch, Run, RunCells, last_runs
from flows.experiments.yaml_file import bare_name
from flows.plan.graph import Plan, make_plan
from flows.plan.settings import check_params
from flows.run.attempt import Attempts
from flows.run.dvc_server import DvcServer
from flows.run.locks import run_lock
from flows.run.outcome import GOOD, TRANSIENT, Artifact, Event, RunOptions, StageEnded, StoppedError
from flows.sweep import clone
from flows.sweep.cell_runner import CellRunner, Live
from flows.sweep.plan import Standing, known_and_to_run, plan_of_all, standings

if TYPE_CHECKING:
    from flows.pipeline_run import CarryOut

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
    carry_out: "CarryOut",
    clones: Path = clone.CLONES,
    alone: bool = False,
    on_worker: bool = False,
    wait: bool = False,
) -> list[Run]:
    """Run the cells that the record has no current result of; the runs of all cells, in their order.

    A cell is recorded as soon as it has ended, a failed one with its message; its clone then stays in `clones`. With
    `alone` nothing comes from the project's caches, and no DVC experiment is made. With `on_worker` missing results
    come from the DVC remote, no DVC experiment is made, and the clones stay: the worker's flow sends off what they
    hold. `carry_out` runs their stages, where there are any.

    Raises UserError before anything runs, StoppedError after Ctrl-C or a cancellation.
    """
    with run_lock(batch.title, wait=wait), contextlib.closing(DvcServer()) as server:
        head = clone.head_commit(batch.targets, batch.cells)
        known, to_run = known_and_to_run(batch)
        finished = {cell for cell, run in last_runs(batch.record).items() if run.state == "finished"}
        clone.remove_leftovers(clones.absolute(), finished - to_run.keys())
        if not to_run:
            return [known[cell.id] for cell in batch.cells]
        print(f"{batch.title}: preparing a clone for each of {len(to_run)} cells ...", flush=True)
        cache, own_cache, folders = clone.project_cache(), clones.absolute() / "cache" if alone else None, {}
        for number, (name, cell) in enumerate(to_run.items(), start=1):
            print(f"{batch.title}: clone {number} of {len(to_run)}: {cell.label}", flush=True)
            folders[name] = clone.prepare(cell, head, clones / name, own_cache, cache=cache)
        clone.require_same_bytes(next(iter(folders.values())), batch.targets)
        print(f"{batch.title}: looking for what cells share", flush=True)
        plan = plan_of_all(folders, batch.targets)
        live = Live(batch.title, to_run, [stage.name for stage in plan.to_do], len(known))
        runner = CellRunner(
            server,
            cells=to_run,
            folders=folders,
            batch=batch,
            head=head,
            save_experiment=(lambda *_: "") if alone or on_worker else clone.save_experiment,
            discard=(lambda _: None) if on_worker else lambda cell: clone.discard(clones.absolute() / cell),
            on_ended=live.on_ended,
        )
        options = RunOptions(tuple(batch.targets), keep_going=True, pull=on_worker, wait=wait)
        run = run_stages(plan, options, runner, live, carry_out)
    if run.cancelled:
        raise StoppedError(f"stopped; {len(runner.runs)} of {len(to_run)} cells are done, the same command continues")
    all_runs = known | runner.runs
    return [all_runs[cell.id] for cell in batch.cells]


def run_stages(plan: Plan, options: RunOptions, runner: CellRunner, live: Live, carry_out: "CarryOut") -> Attempts:
    """Run the stages of all cells; every cell has then ended, or the run was stopped."""

    def on_event(event: Event) -> None:
        live.on_event(event)
        if not isinstance(event, StageEnded) or event.outcome.result in GOOD or run.cancelled:
            return
        if event.retry_in_seconds is None and not passes(event.outcome.exit_code):  # recorded at once: a kill may come
            cell, _, stage = event.stage.partition("/")
            runner.end_without_result(cell, f"{stage}: {event.outcome.message}", record=True)

    def finish() -> Iterable[Artifact]:
        if not run.cancelled:
            end_the_rest(run, runner)
        live.stop()
        ended = [(runner.cells[cell].label, one) for cell, one in runner.runs.items()]
        rows = [{"cell": label, "state": one.state, "message": one.message} for label, one in ended]
        yield Artifact("cells", "table", rows, "What became of the cells")

    run = Attempts(plan, options, runner, on_event)
    with live:
        runner.expect(plan.to_do)
        if plan.to_do:
            carry_out(run, finish)
        else:
            list(finish())
    return run


def end_the_rest(run: Attempts, runner: CellRunner) -> None:
    """End each cell that has no result yet, for a failure of its own or of another cell's stage that it waits for."""
    bad = {name: outcome for name, outcome in run.outcomes.items() if outcome.result not in GOOD}
    for stage in run.plan.to_do:
        cell, _, own = stage.name.partition("/")
        if cell in runner.runs or (stage.name in run.outcomes and stage.name not in bad):
            continue
        cause = next((name for name in (stage.name, *stage.upstream) if name in bad), None)
        if cause is None:
            runner.end_without_result(cell, f"{own} was not started", record=False)
            continue
        waits = "" if cause == stage.name else f" waits for {cause}"
        message, code = f"{own}{waits}: {bad[cause].message}", bad[cause].exit_code
        runner.end_without_result(cell, message, record=not passes(code))


def passes(exit_code: int) -> bool:
    """Whether a stage's failure may pass by itself: it was killed, or what it needed did not answer."""
    return exit_code in (*TRANSIENT, -signal.SIGKILL, 128 + signal.SIGKILL)
