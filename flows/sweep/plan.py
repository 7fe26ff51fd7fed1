"""One plan of all cells: what is the same in several cells is computed once, by the first of them.

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

from flows.dvc_repo.internals import open_repo
from flows.environment import dvc_state_within
from flows.plan.graph import Plan, PlannedStage, make_plan
from stages.runtime.entry import UserError


def cell_stage(cell: str, stage: str) -> str:
    """The name of a cell's stage in the plan of all cells."""
    return f"{cell}/{stage}"


def plan_of_all(folders: Mapping[str, Path], targets: Sequence[str]) -> Plan:
    """The plan of all cells, whose project folders are given by their ids, in the order in which they are to start.

    Raises UserError on a target that a gate or an approval guards: cells end before what is done once.
    """
    stages: list[PlannedStage] = []
    secrets: frozenset[str] = frozenset()
    first: dict[str, str] = {}
    for cell, folder in folders.items():
        with working_in(folder):
            plan, contents = make_plan(targets), computed_contents(targets)
        secrets |= plan.secrets
        to_do = {stage.name for stage in plan.to_do}
        for stage in plan:
            _require_unguarded(stage)
            name = cell_stage(cell, stage.name)
            upstream = [cell_stage(cell, other) for other in stage.upstream]
            state = stage.state
            if stage.name in to_do:
                earlier = first.setdefault(contents[stage.name], name)
                if earlier != name:
                    upstream.append(earlier)
                    state = "maybe"
            policy = stage.policy
            if policy.sidecar is not None:  # it would work in the project, not in the clone
                policy = policy.model_copy(update={"sidecar": policy.sidecar.model_copy(update={"when": None})})
            stages.append(replace(stage, name=name, upstream=tuple(upstream), state=state, policy=policy))
    return Plan(tuple(stages), secrets=secrets)


def require_unguarded(targets: Sequence[str]) -> None:
    """Raise UserError if a gate or an approval guards a target or a stage before it."""
    for stage in make_plan(targets):
        _require_unguarded(stage)


def _require_unguarded(stage: PlannedStage) -> None:
    if stage.policy.gate or stage.policy.approval:
        raise UserError(f"targets: {stage.name} has a gate or needs an approval; let the cells end before it")


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
    before, environment = Path.cwd(), {name: os.environ.get(name) for name in dvc_state_within(folder)}
    os.chdir(folder)
    os.environ.update(dvc_state_within(folder))
    try:
        yield
    finally:
        os.chdir(before)
        for name, value in environment.items():
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
