"""Cells of an experiment or a search: which have a current result, and the others from their clones to their records.

The stages of all cells are tasks of one flow run, which share its slots and resources. The project stays locked, so no
other run of it takes the same cores.
"""

import contextlib
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from flows.dvc_repo.cache import reach
from flows.experiments.runs import Batch, Run, last_runs, runs_that_count
from flows.run.attempt import Attempts
from flows.run.dvc_server import DvcServer
from flows.run.locks import run_lock
from flows.run.outcome import GOOD, TRANSIENT, Artifact, Event, RunOptions, StageEnded, StageOutcome, StoppedError
from flows.sweep import clone
from flows.sweep.cell_runner import CellRunner, Live, ReasonToStop
from flows.sweep.committed import sources_of
from flows.sweep.plan import plan_of_all
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
