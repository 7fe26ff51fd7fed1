"""Which cells have no current result; and one plan of those, in which what several share is computed by the first.

A stage of a cell is named `CELL_ID/STAGE`. Two stages compute the same if they and all stages before them have the same
command and read the same values of params.yaml: code and data are those of one commit. The first one runs; the others
wait for it, and DVC then restores its result from the cache that all clones share. Sent to the workers of a pool is a
job for each cell, and before it one for the stages that it shares.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dvc.dependency.param import ParamsDependency

from flows.dvc_repo.cache import reach
from flows.dvc_repo.internals import open_repo
from flows.environment import dvc_state_within
from flows.experiments.cells import Cell
from flows.experiments.rows import CELL_REPORT
from flows.experiments.runs import Batch, Run, runs_that_count
from flows.plan.graph import Plan, PlannedStage, make_plan
from flows.sweep import clone
from flows.sweep.committed import sources_of
from stages.formats.reports import read_json, write_json
from stages.runtime.entry import STATE_DIR
from stages.runtime.section import read_params_file

TIMED = STATE_DIR / "timed.json"
"""In a clone: what each stage computes of which CELL_REPORT has the time."""


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


@dataclass(frozen=True)
class Job:
    """Stages of one cell, brought up to date by one worker."""

    key: str
    """Equal for equal work at the same commit: by it another call finds what this one has started."""
    cells: tuple[str, ...]
    """Ids of the cells that need it; it works with the params.yaml of the first."""
    targets: tuple[str, ...]
    waits_for: tuple[str, ...] = ()
    """Keys of jobs whose results it takes from the DVC remote."""
    shared: bool = False

    @property
    def folder(self) -> str:
        """Of its clone on the worker."""
        return f"shared-{self.key[:8]}" if self.shared else self.cells[0]


def jobs_of(
    contents: Mapping[str, Mapping[str, str]],
    cell_names: Mapping[str, str],
    targets: Sequence[str],
    commit: str,
    reports: Iterable[str] = (),
) -> list[Job]:
    """The jobs of cells, whose stages are given with hashes of what they compute; each stands after those it waits for.

    A cell's own job has in its key its name and the wanted reports: the DVC experiment that comes of it has both.

    Stages that the same cells share are one job. What a stage needs, all cells that share it share too; so a job waits
    for those that more cells share.
    """
    users: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for cell, stages in contents.items():
        for name, content in stages.items():
            users.setdefault(content, []).append(cell)
            names[content] = name
    groups: dict[tuple[str, ...], list[str]] = {}
    for content, cells in users.items():
        if len(cells) > 1:
            groups.setdefault(tuple(cells), []).append(content)
    jobs: list[Job] = []
    for sharing, group in sorted(groups.items(), key=lambda item: -len(item[0])):
        before = tuple(job.key for job in jobs if set(sharing) < set(job.cells))
        stages_here = tuple(names[content] for content in group)
        jobs.append(Job(_key(commit, sorted(group)), sharing, stages_here, before, shared=True))
    for cell in contents:
        before = tuple(job.key for job in jobs if job.shared and cell in job.cells)
        jobs.append(Job(_key(commit, [cell_names[cell], *targets, *sorted(reports)]), (cell,), tuple(targets), before))
    return jobs


def _key(commit: str, parts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([commit, *parts]).encode()).hexdigest()[:16]
