"""What became of the runs: trials of optuna, which its journal keeps.

A trial's curve is in its intermediate values, by step. `user_attrs` of a trial has the id of its `cell`, its DVC
`experiment`, the `message` of one that was stopped or failed, and `after`: how many trials there were when it was
proposed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from flows.experiments.cells import Cell
from flows.experiments.rows import is_number
from flows.experiments.runs import Run
from flows.search.early_stop import early_stop, over_shares
from flows.search.proposals import Proposal, cell_of, distributions
from flows.search.search_file import Search
from stages.runtime.atomic import atomic_write
from stages.runtime.dotted import differences, value_at
from stages.runtime.entry import UserError

STATES = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped", TrialState.FAIL: "failed"}
"""Optuna's states for people."""

SETTINGS = "file"
"""The study's attribute that has the search file."""


def open_study(path: Path, name: str, written: Search, *, write: bool) -> optuna.Study | None:
    """The study of a search, by its file, in its journal, which is made if it is to be written; None where it is not.

    Raises UserError for one that was made with another search file; only the budget and the question may change.
    """
    if not write and not path.is_file():
        return None
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.is_file() else b""
        if not content.endswith(b"\n"):  # a kill has left half a line, which optuna would not read past
            atomic_write(path, content[: content.rfind(b"\n") + 1])
    storage = JournalStorage(JournalFileBackend(str(path)))
    settings = written.model_dump(mode="json", exclude={"question", "budget"})
    if write and not any(study.study_name == name for study in storage.get_all_studies()):
        study = optuna.create_study(storage=storage, study_name=name, direction=written.direction)
        study.set_user_attr(SETTINGS, settings)
    else:
        study = optuna.load_study(storage=storage, study_name=name)
    made_with = study.user_attrs.get(SETTINGS, settings)
    if moved := [key for key, *_ in differences("", made_with, settings)]:
        raise UserError(
            f"{path}: made with another search file: {', '.join(moved)}; put these values back, or move {path.parent} "
            "away to search anew"
        )
    return study


def cell_of_trial(name: str, search: Search, trial: FrozenTrial) -> Cell:
    """The run of a trial of the search of this name, with its choices of conf/ replaced by their values."""
    return cell_of(f"{name}-{trial.number + 1:04}", search, trial.params)


def ranked(search: Search, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The finished ones, the best first; of equal ones the earlier first."""
    done = [(trial.value, trial) for trial in trials if trial.value is not None and trial.state == TrialState.COMPLETE]
    return [trial for _, trial in sorted(done, key=lambda pair: pair[0] if search.lower_is_better else -pair[0])]


def judged(
    search: Search, earlier: Sequence[FrozenTrial], number: int, proposal: Proposal, run: Run, params: Mapping[str, Any]
) -> FrozenTrial:
    """The trial of this number, from 0: a proposal, made after earlier trials, whose run has ended.

    The early stop is decided again, from the whole curve: a run that ended before its curve was read is stopped where
    it would have been, so that the result does not depend on the moment of reading.
    """
    points = run.curves.get(search.stop_early.curve, []) if search.stop_early else []
    state, value, message = TrialState.COMPLETE, number_of(run, search.objective.source), ""
    rule = early_stop(search, earlier, params)
    if rule and (stop := rule.stopped(over_shares(search, proposal.cell, points, params))):
        state, points, message = TrialState.PRUNED, points[: stop[0] + 1], stop[1]
    elif run.state != "finished":
        state, message = TrialState.FAIL, run.message or run.state
    elif value is None:
        state, message = TrialState.FAIL, f"its report has no number {search.objective.source}"
    trial = create_trial(
        state=state,
        value=value if state == TrialState.COMPLETE else None,
        params=dict(proposal.values),
        distributions=distributions(search),
        user_attrs={"cell": proposal.cell.id, "experiment": run.experiment, "message": message, "after": len(earlier)},
        intermediate_values={int(step): value for step, value in points},
    )
    trial.number = number
    return trial


def number_of(run: Run, source: str) -> float | None:
    """The number at FILE:KEY of a run's reports; none where there is no finite one."""
    file, _, key = source.partition(":")
    value = value_at(run.reports.get(file), key)
    return float(value) if is_number(value) else None
