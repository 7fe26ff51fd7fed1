"""Which cells of a sweep have no current result, and why."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.dvc_repo.cache import reach
from flows.environment import dvc_state_within
from flows.experiments.cells import Cell
from flows.experiments.runs import Batch, Run, runs_that_count
from flows.sweep import clone
from flows.sweep.committed import sources_of
from stages.runtime.section import read_params_file


def known_and_to_run(batch: Batch) -> tuple[dict[str, Run], dict[str, Cell]]:
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


<<<<<<< HEAD
def plan_of_all(folders: Mapping[str, Path], targets: Sequence[str]) -> Plan:
    """The plan of all cells, whose project folders are given by their ids, in the order in which they are to start."""
    stages: list[PlannedStage] = []
    first: dict[str, str] = {}
    for cell, folder in folders.items():
        with working_in(folder):
            plan, contents = make_plan(targets), computed_contents(targets)
        forget_other_times(folder, contents)
        to_do = {stage.name for stage in plan.to_do}
        for stage in plan:
            name, upstream = f"{cell}/{stage.name}", [f"{cell}/{other}" for other in stage.upstream]
            state = stage.state
            if stage.name in to_do:
                earlier = first.setdefault(contents[stage.name], name)
                if earlier != name:
                    upstream.append(earlier)
                    state = "maybe"
            stages.append(replace(stage, name=name, upstream=tuple(upstream), state=state))
    return Plan(tuple(stages))


def forget_other_times(folder: Path, contents: Mapping[str, str]) -> None:
    """Remove from a clone's report the times of stages that computed something else, before params.yaml was edited.

    Times of later starts would be added to them. `contents` are those of `computed_contents` now.
    """
    report, timed = folder / CELL_REPORT, folder / TIMED
    if report.exists():
        facts, before = read_json(report), read_json(timed) if timed.exists() else {}
        for key in ("seconds", "cpu_seconds"):
            facts[key] = {name: time for name, time in facts[key].items() if before.get(name) == contents.get(name)}
        write_json(report, facts)
    write_json(timed, contents)


def computed_contents(targets: Sequence[str]) -> dict[str, str]:
    """For each stage a hash that is equal for equal computations: of its command and values, and of those before it."""
    with open_repo() as repo:
        wanted = [stage for target in targets for stage in repo.stage.collect(target, with_deps=True)]
        graph = repo.index.graph
        contents: dict[str, str] = {}

        def content(stage: Any) -> str:
            name = stage.addressing
            if name not in contents:
                values = {str(dep): dep.read_params() for dep in stage.deps if isinstance(dep, ParamsDependency)}
                before = sorted(map(content, graph.successors(stage)))
                text = json.dumps([name, stage.cmd, values, before], sort_keys=True, default=str)
                contents[name] = hashlib.sha256(text.encode()).hexdigest()
            return contents[name]

        for stage in wanted:
            content(stage)
        return contents


=======
>>>>>>> 13d8bbe6 (x)
@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """While within, the clone `folder` is the working directory; for the only thread of a process."""
    before = {name: os.environ.get(name) for name in dvc_state_within(folder)}
    os.environ.update(dvc_state_within(folder))
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
