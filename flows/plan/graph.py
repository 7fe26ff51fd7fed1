"""The plan: which stages of dvc.yaml would run, and why. No result is changed.

A stage is
    up to date    nothing that it depends on has changed
    run           something has changed
    maybe         a stage before it runs; if that writes the same bytes as before, this one is skipped (early cut-off)
    restore       its result for exactly these inputs is in DVC's cache
The plan is a prediction; DVC decides when the stage's turn comes.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.stage import PipelineStage, Stage

from flows.dvc_repo import in_order_of_repro, is_restorable, open_repo, remedy, run_cache_entry
from flows.plan.changes import Reason, check_deps, reasons_to_run, record_codes, writes_code
from flows.plan.settings import Policy, read_policy
from stages.runtime.atomic import atomic_write
from stages.runtime.errors import STATE_DIR, UserError, did_you_mean
from stages.runtime.preflight import DVC_FILE

StageState = Literal["up to date", "run", "maybe", "restore"]

DURATIONS_FILE = STATE_DIR / "seconds.json"
"""How long each stage's last run on this machine took, for estimates."""

COUNTED = {"code": "code files", "library": "libraries", "parameter": "parameters"}
"""Kinds of reasons of which `MAX_NAMED` are shown and the others counted."""

MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of the plan."""

    name: str
    state: StageState
    reasons: tuple[Reason, ...]
    upstream: tuple[str, ...]
    """Stages whose outputs it reads."""
    policy: Policy = field(default_factory=Policy)
    seconds: float | None = None
    """How long its last run on this machine took; None if unknown."""

    @property
    def causes(self) -> list[str]:
        """The reasons, with at most a few files and libraries; upstream stages only if there are no others."""
        parts = list[str]()
        for kind, reasons in groupby(self.reasons, attrgetter("kind")):
            texts = [str(reason) for reason in reasons if kind != "upstream"]
            if kind in COUNTED and len(texts) > MAX_NAMED + 1:
                texts = [*texts[:MAX_NAMED], f"and {len(texts) - MAX_NAMED} more {COUNTED[kind]}"]
            parts += texts
        upstream = [reason.what for reason in self.reasons if reason.kind == "upstream"]
        if upstream and not parts:
            parts = [f"after {', '.join(upstream)}"]
        return parts

    @property
    def why(self) -> str:
        """The causes in one line."""
        return "; ".join(self.causes)


@dataclass(frozen=True, slots=True)
class Plan:
    """All stages, upstreams first."""

    stages: tuple[PlannedStage, ...] = field(default_factory=tuple)

    def __iter__(self) -> Iterator[PlannedStage]:
        return iter(self.stages)

    @property
    def to_do(self) -> list[PlannedStage]:
        """The stages that are not up to date."""
        return [stage for stage in self.stages if stage.state != "up to date"]

    @property
    def is_first(self) -> bool:
        """True if no stage has run here before, and DVC's cache has none of their results."""
        return all(stage.state == "run" and Reason("never run", stage.name) in stage.reasons for stage in self.stages)

    @property
    def seconds(self) -> float:
        """The sum of the last times of the stages that may run; unknown times count as 0."""
        return sum(stage.seconds or 0.0 for stage in self.stages if stage.state in ("run", "maybe"))

    @property
    def facts(self) -> dict[str, Any]:
        """What would run and why, for `--json`."""
        names = ("name", "state", "why", "upstream", "seconds")
        stages = [{name: getattr(stage, name) for name in names} for stage in self.stages]
        return {"to_run": len(self.to_do), "stages": stages}


def make_plan(targets: Sequence[str] = (), *, force: bool = False) -> Plan:
    """Plan the stages of dvc.yaml, or `targets` and the stages that they depend on. Writes only the files of code.

    Raises UserError if dvc.yaml cannot be read, a target does not exist, DVC cannot hash a dep, or a stage is frozen
    or in another dvc.yaml.
    """
    for name in ("dvc", "dvc_data"):
        # Hide progress bars; errors are raised anyway.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with open_repo() as repo, repo.lock:
            stages = _wanted(repo, targets)
            for stage in stages:
                refuse_foreign(stage)
            check_deps(repo, stages)
            return Plan(tuple(_plan(repo, stages, force)))
    except DvcException as error:
        raise UserError(f"dvc: {error}{remedy(error)}") from None


def refuse_foreign(stage: Stage) -> None:
    """Raise UserError if a stage is frozen, in another dvc.yaml, or has outputs below a link."""
    if not isinstance(stage, PipelineStage):
        return
    parents = {parent for out in stage.outs for parent in Path(out.fs_path).parents if parent.is_symlink()}
    if links := sorted(link for link in parents if stage.repo.root_dir in map(str, link.parents)):
        raise UserError(
            f"{links[0].relative_to(stage.repo.root_dir)}: is a link, and DVC caches no output below a link; make "
            "it a folder. To use another disk: `dvc cache dir --local FOLDER`, `dvc config --local cache.type symlink`"
        )
    if stage.frozen:
        raise UserError(
            f"{stage.addressing} is frozen, so its result may be out of date: run `dvc unfreeze {stage.addressing}`"
        )
    if stage.path_in_repo != str(DVC_FILE):
        raise UserError(
            f"{stage.addressing}: parrotflow runs only the stages of {DVC_FILE} in the project's root; move it there, "
            f"or run `dvc repro {stage.addressing}`"
        )


def _wanted(repo: Repo, targets: Sequence[str]) -> list[PipelineStage]:
    graph = repo.index.graph
    chosen: set[PipelineStage] = set()
    todo = [stage for target in targets for stage in _collect(repo, target)]
    if not targets:  # the index has all stages; `collect` would read the file again
        todo = [stage for stage in graph if stage.path_in_repo == str(DVC_FILE)] or repo.stage.collect(str(DVC_FILE))
    while todo:
        stage = todo.pop()
        if stage not in chosen:
            chosen.add(stage)
            todo.extend(graph.successors(stage))
    return in_order_of_repro(chosen, graph)


def _collect(repo: Repo, target: str) -> Iterable[PipelineStage]:
    try:
        collected: Iterable[PipelineStage] = repo.stage.collect(target)
    except DvcException as error:
        meant = did_you_mean(target, [stage.addressing for stage in repo.index.stages])
        raise UserError(f"dvc: {error}{remedy(error)}{meant}") from None
    return collected


def _plan(repo: Repo, stages: list[PipelineStage], force: bool) -> Iterator[PlannedStage]:
    changing: set[str] = set()
    seconds, graph = read_seconds(), repo.index.graph
    folders, planned = record_codes(repo.index.stages), set(stages)
    made = {str(out) for stage in repo.index.stages for out in stage.outs}
    for stage in stages:
        upstream = [other.addressing for other in graph.successors(stage) if other in planned]
        reasons = list(reasons_to_run(stage, folders, made))
        if force:
            reasons.append(Reason("asked", stage.addressing))
        running = [name for name in upstream if name in changing]
        state: StageState = "maybe" if running else "up to date"
        if reasons:
            state = "restore" if not (running or force) and _is_cached(stage, reasons) else "run"
        if Reason("never run", stage.addressing) not in reasons:
            reasons += [Reason("upstream", name) for name in running]
        # Stages may change their outputs, except if these are only restored, or are the already written code.
        is_unchanged = state == "restore" and all(reason.kind == "output" for reason in reasons)
        if not (state == "up to date" or is_unchanged or writes_code(stage)):
            changing.add(stage.addressing)
        yield PlannedStage(
            stage.addressing,
            state,
            tuple(reasons),
            tuple(upstream),
            read_policy(stage.addressing, getattr(stage, "meta", None)),
            seconds.get(stage.addressing),
        )


def _is_cached(stage: PipelineStage, reasons: Sequence[Reason]) -> bool:
    """True if the cache has the results for the current inputs."""
    if all(reason.kind == "output" for reason in reasons) and is_restorable(stage) and stage.outs_cached():
        return True
    # The run-cache also has metrics that are not cached as outputs.
    entry = run_cache_entry(stage)
    return entry is not None and bool(entry.outs_cached())


def read_seconds() -> dict[str, float]:
    """Stage -> seconds of its last run."""
    try:
        return {name: float(value) for name, value in json.loads(DURATIONS_FILE.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def remember_seconds(name: str, seconds: float) -> None:
    """Record how long a stage took."""
    atomic_write(DURATIONS_FILE, json.dumps(read_seconds() | {name: round(seconds, 1)}, indent=1, sort_keys=True))
