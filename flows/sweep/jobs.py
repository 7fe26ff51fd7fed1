"""What is sent to the workers of a pool: a job for each cell, and before it one for the stages that it shares."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
    contents: Mapping[str, Mapping[str, str]], cell_names: Mapping[str, str], targets: Sequence[str], commit: str
) -> list[Job]:
    """The jobs of cells, whose stages are given with hashes of what they compute; each stands after those it waits for.

    A cell's own job has its name in the key, since the DVC experiment that comes of it is named so.

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
        jobs.append(Job(_key(commit, [cell_names[cell], *targets]), (cell,), tuple(targets), before))
    return jobs


def _key(commit: str, parts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([commit, *parts]).encode()).hexdigest()[:16]
