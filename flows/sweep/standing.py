"""Which cells have a current result, and why the others would run."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.dvc_repo.reach import reach
from flows.experiments.runs import Run, recorded_runs
from flows.sweep import clone
from flows.sweep.committed import sources_of
from stages.runtime.section import differences, read_params_file

if TYPE_CHECKING:
    from flows.experiments.cells import Cell


def known_and_to_run(
    cells: Sequence["Cell"], record: Path, targets: Sequence[str], wanted: Collection[str]
) -> tuple[dict[str, Run], dict[str, "Cell"]]:
    """The runs that the record has a current result of, and the cells of which it has none; by the cells' ids.

    `wanted` are reports, and FILE:COLUMN of curves.
    """
    standing = standings(cells, record, targets, wanted)
    known = {cell: found.run for cell, found in standing.items() if found.run and not found.reason}
    return known, {cell.id: cell for cell in cells if cell.id not in known}


@dataclass(frozen=True)
class Standing:
    """Where a cell stands."""

    run: Run | None
    """The one that counts: the newest with today's values of params.yaml, else the newest."""
    reason: str
    """Why the cell would run; empty where its run is finished and what it would give now."""
    failed: bool = False
    """Whether it would run only because it failed: it waits for `--retry`."""


def standings(
    cells: Sequence["Cell"],
    record: Path,
    targets: Sequence[str],
    wanted: Collection[str],
) -> dict[str, Standing]:
    """Where each cell stands, by its id.

    A run is what its cell would give now if it was made with the same values of all that its stages read of
    params.yaml, if no file that they read and no code that they use has changed since, and if it has all reports and
    curves that are wanted.
    """
    runs: dict[str, list[Run]] = {}
    for run in recorded_runs(record):
        runs.setdefault(run.cell, []).insert(0, run)
    values, keys = read_params_file(), reach(targets).params
    changed: dict[tuple[str, str], list[str]] = {}
    found: dict[str, Standing] = {}
    for cell in cells:
        if cell.id not in runs:
            found[cell.id] = Standing(None, "not run yet")
            continue
        todays = cell.params(values)
        moved = [
            [key for key, *_ in differences("", run.params, todays) if _is_read(key, keys)] for run in runs[cell.id]
        ]
        newest = moved.index([]) if [] in moved else 0
        run = runs[cell.id][newest]
        key = (run.baseline, sources_of(todays))
        if key not in changed:
            changed[key] = clone.changed_since(key[0], targets, key[1])
        absent = sorted({*wanted} - run.reports.keys() - run.curves.keys())
        if causes := [*moved[newest], *changed[key]]:
            found[cell.id] = Standing(run, f"{', '.join(causes[:3])} changed since")
        elif run.state != "finished":
            found[cell.id] = Standing(run, f"{run.state}: {run.message}", failed=run.state == "failed")
        else:
            found[cell.id] = Standing(run, f"has no {', '.join(absent[:3])} yet" if absent else "")
    return found


def _is_read(key: str, keys: Collection[str]) -> bool:
    return any(not read or f"{key}.".startswith(f"{read}.") or f"{read}.".startswith(f"{key}.") for read in keys)
