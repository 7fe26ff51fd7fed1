"""Cells to run together, and the record of how they ended."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.experiments.cells import Cell
from flows.experiments.runs import Run, RunState, append_run, reports_and_curves
from flows.run.outcome import StageOutcome


@dataclass(frozen=True)
class Batch:
    """Cells to run, and what is recorded of their runs."""

    title: str
    """Shown to the user."""
    cells: Sequence[Cell]
    targets: Sequence[str]
    """The stages at which a run ends."""
    reports: Collection[str]
    """JSON files."""
    curves: Collection[str]
    """FILE:COLUMN."""
    sections: Collection[str]
    """Sections of params.yaml that the stages read."""
    record: Path
    retries: int = 0
    """How often a job is tried again that failed for want of a service."""
    retry_delay_seconds: float = 0.0

    @property
    def files(self) -> set[str]:
        """The files of the reports and curves."""
        return {*self.reports, *(location.partition(":")[0] for location in self.curves)}

    def end(
        self,
        cell: Cell,
        outcome: StageOutcome,
        baseline: str,
        params: Mapping[str, Any],
        keys: Mapping[str, str],
        *,
        commit: str = "",
        texts: Mapping[str, str] | None = None,
    ) -> Run:
        """Return the run of a cell that has ended, and record it unless it was cancelled: it may then succeed later.

        `texts` are those of the files that hold the reports and curves.
        """
        values, points = reports_and_curves(texts or {}, self.reports, self.curves)
        state: RunState = "finished" if outcome.good else "cancelled" if outcome.may_pass else "failed"
        run = Run(
            cell=cell.id,
            state=state,
            experiment=cell.name if commit else "",
            commit=commit,
            baseline=baseline,
            params={name: section for name, section in params.items() if name in self.sections},
            reports=values,
            curves=points,
            ended=datetime.now(UTC).isoformat(timespec="seconds"),
            message=outcome.message,
            keys=dict(keys),
        )
        if state != "cancelled":
            append_run(self.record, run)
        return run
