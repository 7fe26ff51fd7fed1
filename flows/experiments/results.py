"""`parrotflow table NAME`: from the runs that there are to tables, figures and checked claims.

The runs are those of the record, which a sweep writes, and DVC's experiments. The results are written to
`experiments/NAME/SIZE/`: runs.csv (tidy data), tables/ (.tex, .md, .html, .csv, and .json, which `parrotflow cell` and
`--check` read), figures/ (.pdf, .svg, .png) and claims.json.
"""

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from flows.dvc_repo.experiments import (
    DvcExperiment,
    dvc_experiments,
    has_commit,
    head_commit,
    reach,
    stale_at,
    texts_at,
)
from flows.experiments.cells import Cell, cells_of, queue_command, require_written
from flows.experiments.claims import CheckedClaim, check_claims, fit_of
from flows.experiments.experiment import (
    Experiment,
    SettingName,
    bare_name,
    experiment_path,
    read_experiment,
    results_folder,
)
from flows.experiments.figures import write_figure
from flows.experiments.rendering import write_forms
from flows.experiments.rows import Tidy, is_of_today, lacking, rows_csv, tidy
from flows.experiments.runs import Run, State, matrix_runs, recorded_as, recorded_runs, reports_and_curves
from flows.experiments.statistics import PowerLaw
from flows.experiments.stored import (
    CLAIMS,
    FITS,
    RECORD,
    SUCCESSES,
    TABLES,
    EntryRun,
    StoredClaim,
    StoredFit,
    StoredTable,
    Verdict,
    compare_claims,
    compare_fits,
    compare_tables,
    read_claims,
    read_fits,
    read_table,
    write_table,
)
from flows.experiments.tables import differences_table, means_table
from stages.formats.reports import write_json
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError
from stages.runtime.section import PARAMS_FILE, read_params_file

DVC_STATES: Mapping[str, State] = {"success": "finished", "failed": "failed", "running": "running", "queued": "queued"}


@dataclass(frozen=True)
class Results:
    """What the runs give, computed but not written."""

    experiment: Experiment
    data: Tidy
    tables: list[StoredTable]
    fits: dict[str, PowerLaw]
    unfitted: dict[str, str]
    """Fits for which there are too few runs, and why."""
    claims: list[CheckedClaim]


def commands(name: str, size: SettingName) -> list[str]:
    """The shell commands that queue the cells which have no finished run yet, as DVC experiments."""
    experiment, cells, data = _collected(name, size)
    rows = {row.cell: row for row in data.rows}
    values, head = read_params_file(), head_commit()
    lines = []
    for cell in cells:
        row = rows[cell.id]
        if row.state in ("running", "queued") or (row.state == "finished" and not row.lacks):
            continue
        queue = queue_command(cell, experiment.targets, values)
        if row.experiment == cell.name and row.commit and row.baseline == head:  # DVC refuses a name that is taken
            queue = f"{shlex.join(['dvc', 'exp', 'rename', cell.name, f'{cell.name}-{row.commit[:7]}'])} && {queue}"
        lines.append(queue)
    return lines


def compute(name: str, size: SettingName, runs: Iterable[Run] | None = None) -> Results:
    """Tables, fits and claims of the runs that there are, or of those given. Raises UserError on faults of the file."""
    experiment, _, data = _collected(name, size, runs)
    place = (bare_name(name), size)
    fits: dict[str, PowerLaw] = {}
    unfitted: dict[str, str] = {}
    try:
        for fit in experiment.fits:
            try:
                fits[fit] = fit_of(experiment, fit, data)
            except ValueError as error:
                unfitted[fit] = str(error)
        tables = [means_table(experiment, place, table, data) for table in experiment.tables]
        tables += [differences_table(experiment, place, item, data) for item in experiment.comparisons]
        claims = check_claims(experiment, data)
    except UserError as error:
        raise UserError(f"{experiment_path(name)}: {error}") from None
    return Results(experiment, data, tables, fits, unfitted, claims)


def _collected(name: str, size: SettingName, given: Iterable[Run] | None = None) -> tuple[Experiment, list[Cell], Tidy]:
    experiment = read_experiment(name)
    cells = cells_of(name, experiment, size)
    reached = reach(experiment.targets)
    require_written(name, experiment, reached)
    if given is not None:
        return experiment, cells, tidy(experiment, cells, given, read_params_file(), reached.params)
    values, folder = read_params_file(), results_folder(name, size)
    runs = [*reversed(recorded_runs(folder / RECORD)), *matrix_runs(folder)]
    known = {run.commit for run in runs}
    runs += dvc_runs({cell.name for cell in cells}, experiment.reports, experiment.curve_sources, known)
    counting = [
        _counting([(run, is_of_today(run, cell, values, reached.params)) for run in runs if run.cell == cell.id])
        for cell in cells
    ]
    return experiment, cells, tidy(experiment, cells, filter(None, counting), values, reached.params)


def _counting(runs: Sequence[tuple[Run, bool]]) -> Run | None:
    """Which run of a cell counts, given each with whether it was made with today's params.

    Of those that have ended one of today's counts first, then the newest; of two that ended in the same second the
    first. What waits or runs counts until a run of today's params has finished.
    """
    ended = [(run, today) for run, today in runs if run.state in ("finished", "failed")]
    best, is_todays = max(ended, key=lambda item: (item[1], _ended(item[0])), default=(None, False))
    at_work = next((run for run, _ in runs if run.state in ("queued", "running")), None)
    done = best is not None and best.state == "finished" and is_todays
    return best if done or at_work is None else at_work


def _ended(run: Run) -> datetime:
    """When a run ended; DVC gives local time without its zone."""
    return datetime.fromisoformat(run.ended).astimezone() if run.ended else datetime.min.replace(tzinfo=UTC)


def dvc_runs(
    names: Collection[str], reports: Collection[str], curves: Collection[str], known: Collection[str] = ()
) -> list[Run]:
    """The runs that DVC's experiments hold of the cells with these names, which end with the cells' ids.

    Of the experiments of a cell these are the newest finished one, unless its commit is `known`, and the newest other.
    """
    newest: dict[tuple[str, bool], DvcExperiment] = {}
    # By whole names: another experiment may have the same cells, and a name that begins alike.
    for found in dvc_experiments(names):
        newest[found.name.rpartition("-")[2], found.state == "success"] = found
    return [run_of(found, cell, reports, curves) for (cell, _), found in newest.items() if found.commit not in known]


def run_of(found: DvcExperiment, cell: str, reports: Collection[str], curves: Collection[str]) -> Run:
    """A DVC experiment as the run of a cell, with what its commit holds of these JSON files and FILE:COLUMN curves.

    DVC's own reading of metrics leaves out lists, such as intervals. Left out is what the experiment's targets did not
    reach.
    """
    texts: Mapping[str, str] = {}
    params = found.params.get(str(PARAMS_FILE), {})
    if found.state == "success":
        files = {*reports, *(location.partition(":")[0] for location in curves)}
        texts = texts_at(found.commit, files - stale_at(found.commit, params, files))
    values, points = reports_and_curves(texts, reports, curves)
    return Run(
        cell=cell,
        state=DVC_STATES[found.state],
        experiment=found.name,
        commit=found.commit,
        baseline=found.baseline,
        params=params,
        reports=values,
        curves=points,
        ended=found.ended,
    )


def write_results(name: str, size: SettingName, results: Results) -> list[Path]:
    """Write all of it, each file whole; the paths."""
    folder = results_folder(name, size)
    atomic_write(folder / "runs.csv", rows_csv(results.experiment, results.data))
    written = [folder / "runs.csv"]
    for table in results.tables:
        write_table(folder / TABLES, table)
        written += write_forms(folder / TABLES, table)
    for figure in results.experiment.figures:
        written += write_figure(folder / "figures", results.experiment, figure, results.data, results.fits)
    if results.experiment.fits:  # also where none is left: no fit of runs that are no longer there
        write_json(folder / FITS, {fit: law.model_dump() for fit, law in stored_fits(results).items()})
    else:
        (folder / FITS).unlink(missing_ok=True)
    write_json(folder / CLAIMS, [asdict(claim) for claim in results.claims])
    return written


def stored_fits(results: Results) -> dict[str, StoredFit]:
    """The fits as they are stored."""
    return {
        name: StoredFit(
            a=law.a,
            b=law.b,
            c=law.c,
            b_interval_95=[law.b_low, law.b_high],
            runs=law.n,
            expected=len(results.data.rows),
        )
        for name, law in results.fits.items()
    }


def check(name: str, size: SettingName, results: Results) -> list[tuple[str, str, str, Verdict, str]]:
    """The stored results against what the runs give now: table, row, column, verdict and the values.

    Each entry of each table, then as tables `fits` and `claims` the exponent of each fit and the answer of each claim.

    Raises UserError where no table is stored.
    """
    folder = results_folder(name, size)
    compared = [
        (table.name, *entry)
        for table in results.tables
        for entry in compare_tables(read_table(folder / TABLES / f"{table.name}.json"), table)
    ]
    compared += [("fits", *fit) for fit in compare_fits(read_fits(folder), stored_fits(results))]
    claims = [StoredClaim(**asdict(claim)) for claim in results.claims]
    return compared + [("claims", *claim) for claim in compare_claims(read_claims(folder), claims)]


def comparison(compared: Iterable[tuple[str, str, str, Verdict, str]]) -> tuple[list[str], bool]:
    """What `check` found, in lines, and whether no entry is different, gone or new."""
    entries = list(compared)
    lines = [f"{table}, {row}, {column}: {verdict}: {values}" for table, row, column, verdict, values in entries]
    told = [line for line, entry in zip(lines, entries, strict=True) if entry[3] != "equal"]
    told.append(f"{len(entries) - len(told)} of {len(entries)} entries are equal")
    return told, all(entry[3] in SUCCESSES for entry in entries)


def summary(results: Results) -> Sequence[str]:
    """What a person reads first: the runs, the fits, the claims."""
    states: dict[str, int] = {}
    for row in results.data.rows:
        states[row.state] = states.get(row.state, 0) + 1
    lines = [f"{len(results.data.rows)} runs: {', '.join(f'{count} {state}' for state, count in states.items())}"]
    lines += results.data.notes
    for name, law in results.fits.items():
        offset = f" + {law.c:.4g}" if law.c else ""
        interval = "no interval of the exponent: a cell has one run"
        if law.b_low is not None:
            interval = f"exponent in [{law.b_low:.4g}, {law.b_high:.4g}] (95 %)"
        count = lacking(law.n, len(results.data.rows))
        lines.append(f"{name}: {law.a:.4g} x^-{law.b:.4g}{offset}, {interval}{count and f', {count}'}")
    lines += [f"{name}: not fitted: {why}" for name, why in results.unfitted.items()]
    return [*lines, *(f"{claim.answer}: {claim.says} ({claim.because})" for claim in results.claims)]


def origin(table: StoredTable, run: EntryRun) -> list[str]:
    """Of a run behind an entry, whose DVC experiment has a commit: where it comes from, and where its params are."""
    record = results_folder(table.experiment, table.size) / RECORD
    number, recorded = recorded_as(record, run.commit) or (0, None)
    lines = [f"experiment {run.experiment}, commit {run.commit}"]
    if baseline := run.baseline or (recorded.baseline if recorded else ""):
        lines.append(f"started from commit {baseline}{'' if has_commit(baseline) else ', which this clone lacks'}")
    params = f"params.yaml of sha256 {run.params_sha256}"
    if has_commit(run.commit):
        return [*lines, f"{params}: git show {run.commit[:10]}:./params.yaml"]
    lines.append("this clone lacks the experiment's commit; `dvc exp pull` brings it where it was pushed")
    return [*lines, f"{params}: `params` in line {number} of {record}" if recorded else f"{params}: not recorded"]
