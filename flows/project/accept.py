"""`parrotflow accept`: a stage is declared up to date though something that it hangs on has changed, with the reason.

DVC records the inputs as they are now (`dvc commit`); the ledger under git records who said why, and the model card
shows it. What is accepted is a judgement, so nothing else is ever done by itself.
"""

import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from flows.dvc.lock_file import sort_lock_file
from flows.plan.graph import PlannedStage, make_plan
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError

LEDGER = Path("accepted.yaml")
HEAD = "# Stages declared up to date without a run, and why: written by `parrotflow accept`, shown by the model card.\n"


@dataclass(frozen=True, slots=True)
class Accepted:
    """One entry of the ledger."""

    stage: str
    because: str
    changes: list[str]
    """What had changed, in the plan's words."""
    same_syntax_tree: bool
    """Whether all of it were comments, formatting or docstrings."""
    by: str
    """git's user.name."""
    date: str
    """UTC, YYYY-MM-DD."""


def accept(name: str, because: str) -> Accepted:
    """Declare a stage up to date. Raises UserError where it is, where it never ran, or its outputs are not as left."""
    if not because.strip():
        raise UserError('accept: say why, e.g. --because "a docstring"')
    stage = next(stage for stage in make_plan([name]) if stage.name == name)
    require_acceptable(stage)
    command = [sys.executable, "-m", "dvc", "commit", "--force", name]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise UserError(f"dvc commit {name}: {result.stderr.strip()}")
    sort_lock_file()
    changes = [reason for reason in stage.reasons if reason.kind != "upstream"]
    entry = Accepted(
        stage=name,
        because=because,
        changes=[str(reason) for reason in changes],
        same_syntax_tree=all(reason.only_remarks for reason in changes),
        by=_git_user(),
        date=datetime.now(UTC).date().isoformat(),
    )
    atomic_write(LEDGER, HEAD + yaml.safe_dump([*read_ledger(), asdict(entry)], sort_keys=False, allow_unicode=True))
    return entry


def require_acceptable(stage: PlannedStage) -> None:
    """Raise UserError where there is nothing to accept, or something that cannot be."""
    if stage.state == "clean":
        raise UserError(f"{stage.name} is up to date; there is nothing to accept")
    for reason in stage.reasons:
        if reason.kind == "never run":
            raise UserError(f"{stage.name} has never run; there is no result to accept")
        if reason.kind == "output":
            raise UserError(f"{stage.name}: {reason}: its result is not the one that was computed; `dvc checkout` it")
        if reason.kind == "upstream":
            raise UserError(f"{stage.name}: {reason.what} is not up to date; run or accept that first")


def read_ledger() -> list[dict[str, object]]:
    """The entries so far, as plain values."""
    return (yaml.safe_load(LEDGER.read_text(encoding="utf-8")) or []) if LEDGER.exists() else []


def _git_user() -> str:
    return subprocess.run(["git", "config", "user.name"], capture_output=True, text=True, check=False).stdout.strip()
