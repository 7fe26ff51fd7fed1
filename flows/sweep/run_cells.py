"""`parrotflow sweep NAME`: which cells have a current result, and the others from their clones to their records.

The stages of all cells are tasks of one flow run, which share its slots and resources. The project stays locked, so no
other run of it takes the same cores.
"""

import contextlib
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from flows.dvc_repo.cache import reach
from flows.experiments.cells import Cell, bare_name, cells_of
from flows.experiments.experiment import SettingName, results_folder
from flows.experiments.results import compute
from flows.experiments.runs import RECORD, Batch, Run, RunCells, last_runs, runs_that_count
from flows.plan.settings import check_params
from flows.run.attempt import Attempts
from flows.run.dvc_server import DvcServer
from flows.run.locks import run_lock
from flows.run.outcome import GOOD, TRANSIENT, Artifact, Event, RunOptions, StageEnded, StageOutcome, StoppedError
from flows.sweep import clone
from flows.sweep.cell_runner import CellRunner, Live, ReasonToStop
from flows.sweep.committed import sources_of
from flows.sweep.plan import plan_of_all, require_unguarded
from stages.runtime.section import read_params_file

if TYPE_CHECKING:
    from flows.experiments.cells import Cell
    from flows.pipeline_run import CarryOut
    from flows.plan.graph import Plan


def run_cells(
    batch: Batch,
    *,
    carry_out: "CarryOut",
    stop_early: ReasonToStop | None = None,
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
        folders = prepared(batch.title, to_run, head, clones, clones.absolute() / "cache" if alone else None)
        save = (lambda *_: "") if alone or on_worker else clone.save_experiment
        plan = plan_of_all(folders, batch.targets)
        live = Live(batch.title, to_run, [stage.name for stage in plan.to_do], len(known))

        def discard(cell: str) -> None:
            if not on_worker:
                clone.discard(clones.absolute() / cell)

        runner = CellRunner(
            server,
            cells=to_run,
            folders=folders,
            batch=batch,
            head=head,
            save_experiment=save,
            discard=discard,
            stop_early=stop_early,
            on_ended=live.on_ended,
        )
        options = RunOptions(tuple(batch.targets), keep_going=True, pull=on_worker, wait=wait)
        run = run_stages(plan, options, runner, live, carry_out)
    if run.cancelled:
        raise StoppedError(f"stopped; {len(runner.runs)} of {len(to_run)} cells are done, the same command continues")
    all_runs = known | runner.runs
    return [all_runs[cell.id] for cell in batch.cells]


def prepared(
    title: str, cells: Mapping[str, "Cell"], head: str, clones: Path, own_cache: Path | None
) -> dict[str, Path]:
    """The project folder of each cell's clone, by the cell's id; a line says which one is prepared."""
    print(f"{title}: preparing a clone for each of {len(cells)} cells ...", flush=True)
    cache = clone.project_cache()
    folders = {}
    for number, (name, cell) in enumerate(cells.items(), start=1):
        print(f"{title}: clone {number} of {len(cells)}: {cell.label}", flush=True)
        folders[name] = clone.prepare(cell, head, clones / name, own_cache, cache=cache)
    print(f"{title}: looking for what cells share", flush=True)
    return folders


def known_and_to_run(batch: Batch) -> tuple[dict[str, Run], dict[str, "Cell"]]:
    """The runs that the record has a current result of, and the cells of which it has none; by the cells' ids."""
    known = {cell: found.run for cell, found in standings(batch).items() if found.run and not found.reason}
    return known, {cell.id: cell for cell in batch.cells if cell.id not in known}


@dataclass(frozen=True)
class Standing:
    """Where a cell stands."""

    run: Run | None
    """The one that counts: the newest with today's values of params.yaml, else the newest."""
    reason: str
    """Why the cell would run; empty where its run is finished and what it would give now."""
    failed: bool = False
    """Whether it would run only because it failed: it waits for `--retry`."""


def standings(batch: Batch) -> dict[str, Standing]:
    """Where each cell stands, by its id.

    A run is what its cell would give now if it was made with the same values of all that its stages read of
    params.yaml, if no file that they read and no code that they use has changed since, and if it has all reports and
    curves that are wanted.
    """
    values, keys = read_params_file(), reach(batch.targets).params
    counting = runs_that_count(batch.record, batch.cells, values, keys)
    changed: dict[tuple[str, str], list[str]] = {}
    found: dict[str, Standing] = {}
    for cell in batch.cells:
        run = counting.get(cell.id)
        if run is None:
            found[cell.id] = Standing(None, "not run yet")
            continue
        key = (run.baseline, sources_of(cell.params(values)))
        if key not in changed:
            changed[key] = clone.changed_since(key[0], batch.targets, key[1])
        absent = sorted({*batch.reports, *batch.curves} - run.reports.keys() - run.curves.keys())
        if causes := [*cell.moved(run.params, values, keys), *changed[key]]:
            found[cell.id] = Standing(run, f"{', '.join(causes[:3])} changed since")
        elif run.state != "finished":
            found[cell.id] = Standing(run, f"{run.state}: {run.message}", failed=run.state == "failed")
        else:
            found[cell.id] = Standing(run, f"has no {', '.join(absent[:3])} yet" if absent else "")
    return found


def run_stages(plan: "Plan", options: RunOptions, runner: CellRunner, live: Live, carry_out: "CarryOut") -> Attempts:
    """Run the stages of all cells; every cell has then ended, or the run was stopped."""

    def on_event(event: Event) -> None:
        live.on_event(event)
        if isinstance(event, StageEnded) and not run.cancelled:
            record_failure(runner, event)

    def finish() -> Iterable[Artifact]:
        for cell, failure in failures(plan, run.outcomes).items():
            if cell not in runner.runs and not run.cancelled:
                runner.end_without_result(cell, failure.message, record=not failure.passing)
        live.stop()
        ended = [(runner.cells[cell].label, one) for cell, one in runner.runs.items()]
        rows = [{"cell": label, "state": one.state, "message": one.message} for label, one in ended]
        yield Artifact("cells", "table", rows, "What became of the cells")

    run = Attempts(plan, options, runner, _no_gate, on_event)
    with live:
        runner.expect(plan)
        if plan.to_do:
            carry_out(run, finish)
        else:
            list(finish())
    return run


def record_failure(runner: CellRunner, event: StageEnded) -> None:
    """Record a cell at once where one of its stages has failed for good, so that a kill does not lose that."""
    cell, _, stage = event.stage.partition("/")
    outcome = event.outcome
    for_good = outcome.result not in GOOD and event.retry_in_seconds is None and not passes(outcome.exit_code)
    if for_good:
        runner.end_once(cell, f"{stage}: {outcome.message}")


@dataclass(frozen=True)
class CellFailure:
    """Why a cell has no result."""

    message: str
    passing: bool
    """It was killed from outside, or what it needed did not answer: the same command is to try it again."""


def failures(plan: "Plan", outcomes: Mapping[str, StageOutcome]) -> dict[str, CellFailure]:
    """Of each cell that did not end well: that of its own stage, or of another cell's that it waits for."""
    bad = {name: outcome for name, outcome in outcomes.items() if outcome.result not in GOOD}
    found: dict[str, CellFailure] = {}
    for stage in plan.to_do:
        cell, _, own = stage.name.partition("/")
        if cell in found or (stage.name in outcomes and stage.name not in bad):
            continue
        cause = next((name for name in (stage.name, *stage.upstream) if name in bad), None)
        if cause is None:
            found[cell] = CellFailure(f"{own} was not started", passing=True)
            continue
        waits = "" if cause == stage.name else f" waits for {cause}"
        found[cell] = CellFailure(f"{own}{waits}: {bad[cause].message}", passes(bad[cause].exit_code))
    return found


def passes(exit_code: int) -> bool:
    """Whether a stage's failure may pass by itself: it was killed, or what it needed did not answer."""
    return exit_code in (*TRANSIENT, -signal.SIGKILL, 128 + signal.SIGKILL)


def _no_gate(stage: str) -> NoReturn:
    raise AssertionError(f"{stage}: cells have no gates")


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
