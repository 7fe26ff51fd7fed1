"""`parrotflow accept`: declare a stage up to date though something that it depends on has changed, with the reason.

dvc.lock records the inputs as they are now; the ledger under git records who said why, and the model card shows it.
What is accepted is a judgement, so nothing is ever accepted by itself, and nothing goes into DVC's run-cache: `--undo`,
or git's revert of both files, makes the stage run again.

An entry names the record in dvc.lock that it belongs to. It is written before that record, so that a kill between the
two leaves no accepted stage without a reason; once the stage really runs, the record is another and the entry goes.
"""

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dvc.stage import PipelineStage

from flows.dvc_repo.internals import locked_repo, record_inputs
from flows.dvc_repo.lock_file import forget, recorded, recorded_all
from flows.plan.changes import expect_code, writes_code
from flows.plan.graph import PlannedStage, make_plan
from stages.formats.accepted import ACCEPTED, Accepted, accepted_text, read_accepted
from stages.formats.revision.lock import entry_sha256
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError


def accept(name: str, because: str) -> Accepted:
    """Declare a stage up to date. Raises UserError where it is, where it never ran, or its outputs are not as left."""
    if not because.strip():
        raise UserError('accept: say why, e.g. --because "a clearer message"')
    stages = {stage.name: stage for stage in make_plan([name])}
    if name not in stages:  # the name of all stages of a foreach, or another way to write one
        raise UserError(f"{name}: this is not the name of one stage; there are {', '.join(stages)}")
    stage = stages[name]
    require_acceptable(stage)
    changes = [reason for reason in stage.reasons if reason.kind != "upstream"]
    entry = Accepted(
        stage=name,
        because=because,
        changes=[str(reason) for reason in changes],
        by=_git_user(),
        date=datetime.now(UTC).date().isoformat(),
    )

    def prepare(found: PipelineStage) -> None:
        if writes_code(found):
            raise UserError(f"{name}: it takes a second: run `dvc repro {name}`")
        if found.frozen:  # of what it reads the plan names no change, so neither would the ledger
            raise UserError(f"{name} is frozen: `dvc unfreeze {name}`, and accept what has changed then")
        if any(Path(dep.fs_path) == ACCEPTED.absolute() for dep in found.deps):
            raise UserError(f"{name} reads {ACCEPTED}, so what is accepted makes it run: run it")
        expect_code(found)

    def enter(record: dict[str, Any]) -> None:
        # What was accepted of it before still counts, for the new record too.
        ledger = read_accepted()
        of_stage = [*(before for before in ledger if before.stage == name), entry]
        own = {"record": entry_sha256(record)}
        write_ledger([*ledger, *(each.model_copy(update=own) for each in of_stage)])

    drop_expired()
    record_inputs(name, prepare, before_writing=enter)
    drop_expired()
    return entry


def undo(name: str) -> None:
    """Take back what was accepted of a stage: it has to run again, unless it has really run since.

    Raises UserError where nothing is accepted.
    """
    ledger = read_accepted()
    others = [entry for entry in ledger if entry.stage != name]
    if len(others) == len(ledger):
        raise UserError(f"{name}: nothing is accepted; {ACCEPTED} has the stages for which something is")
    # In this order: a kill between the two leaves an entry that belongs to no record, and goes with the next run.
    with locked_repo():  # a stage that ends now writes dvc.lock too
        if any(entry.fits(recorded(name)) for entry in ledger if entry.stage == name):
            forget(name)
    write_ledger(others)


def drop_expired() -> None:
    """Remove the entries of stages that really ran since: their record in dvc.lock is another by now."""
    ledger = read_accepted()
    if not ledger:
        return
    with locked_repo():  # plain `dvc repro` empties dvc.lock before it writes it
        there = recorded_all(entry.stage for entry in ledger)
    _keep(lambda entry: entry.fits(there.get(entry.stage)))


def drop_entries(name: str) -> None:
    """Remove the entries of a stage that has just run."""
    _keep(lambda entry: entry.stage != name)


def require_acceptable(stage: PlannedStage) -> None:
    """Raise UserError where there is nothing to accept, or something that cannot be."""
    if stage.state == "clean":
        raise UserError(f"{stage.name} is up to date; there is nothing to accept")
    for reason in stage.reasons:
        if reason.kind == "never run":
            raise UserError(f"{stage.name} has never run; there is no result to accept")
        if reason.kind == "always":
            raise UserError(f"{stage.name} {reason}")
        if reason.kind == "output":
            raise UserError(f"{stage.name}: {reason}: its result is not the one that was computed; `dvc checkout` it")
        if reason.kind == "upstream":
            raise UserError(f"{stage.name}: {reason.what} is not up to date; run or accept that first")


def write_ledger(entries: list[Accepted]) -> None:
    """Replace the ledger."""
    atomic_write(ACCEPTED, accepted_text(entries))


def _keep(wanted: Callable[[Accepted], bool]) -> None:
    entries = read_accepted()
    kept = [entry for entry in entries if wanted(entry)]
    if len(kept) < len(entries):
        write_ledger(kept)


def _git_user() -> str:
    return subprocess.run(["git", "config", "user.name"], capture_output=True, text=True, check=False).stdout.strip()
