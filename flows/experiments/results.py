"""`parrotflow table NAME`: from the runs that there are to tables, figures and checked claims.

The runs are those of the record, which a sweep writes. The results are written to `experiments/NAME/SIZE/`: runs.csv
(tidy data, which `parrotflow cell` and `--check` read) and what is made of it: tables/ (.tex, .md, .html, .csv),
figures/ (.pdf, .svg, .png), fits.json and claims.json.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.dvc_repo.experiments import has_commit, reach
from flows.experiments.cells import Cell, cells_of, require_written
from flows.experiments.check import Verdict, compare_claims, compare_fits, compare_tables
from flows.experiments.claims import CheckedClaim, check_claims, fit_of
from flows.experiments.experiment import (
    EXPERIMENTS,
    Experiment,
    SettingName,
    bare_name,
    experiment_path,
    read_experiment,
    results_folder,
)
from flows.experiments.figures import write_figure
from flows.experiments.rendering import write_forms
from flows.experiments.rows import Row, Tidy, is_of_today, lacking, read_rows, rows_csv, tidy
from flows.experiments.runs import RECORD, Run, recorded_as, recorded_runs
from flows.experiments.statistics import PowerLaw
from flows.experiments.tables import Table, differences_table, means_table
from stages.formats.reports import write_json
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError
from stages.runtime.section import read_params_file

RUNS, TABLES, FITS, CLAIMS = "runs.csv", "tables", "fits.json", "claims.json"
"""In the folder of an experiment's results. Tables, fits and claims are made of the first, and never read."""


@dataclass(frozen=True)
class Results:
    """What the runs give, computed but not written."""

    experiment: Experiment
    data: Tidy
    tables: list[Table]
    fits: dict[str, PowerLaw]
    unfitted: dict[str, str]
    """Fits for which there are too few runs, and why."""
    claims: list[CheckedClaim]


def compute(name: str, size: SettingName, runs: Iterable[Run] | None = None) -> Results:
    """Tables, fits and claims of the runs that there are, or of those given. Raises UserError on faults of the file."""
    experiment, _, data = _collected(name, size, runs)
    return _results(name, size, experiment, data)


def _results(name: str, size: SettingName, experiment: Experiment, data: Tidy) -> Results:
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
    """Of the runs of a cell one that was made with today's params counts before all others, then the newest."""
    experiment = read_experiment(name)
    cells = cells_of(name, experiment, size)
    reached, values = reach(experiment.targets), read_params_file()
    require_written(name, experiment, reached)
    runs: Iterable[Run | None] | None = given
    if runs is None:
        of_cell: dict[str, list[Run]] = {}
        for run in recorded_runs(results_folder(name, size) / RECORD):
            of_cell.setdefault(run.cell, []).insert(0, run)
        runs = [
            max(of_cell.get(cell.id, []), key=lambda run: is_of_today(run, cell, values, reached.params), default=None)
            for cell in cells
        ]
    return experiment, cells, tidy(experiment, cells, filter(None, runs), values, reached.params)


def write_results(name: str, size: SettingName, results: Results) -> list[Path]:
    """Write all of it, each file whole; the paths."""
    folder = results_folder(name, size)
    atomic_write(folder / RUNS, rows_csv(results.experiment, results.data))
    written = [folder / RUNS]
    for table in results.tables:
        written += write_forms(folder / TABLES, table)
    for figure in results.experiment.figures:
        written += write_figure(folder / "figures", results.experiment, figure, results.data, results.fits)
    if results.experiment.fits:  # also where none is left: no fit of runs that are no longer there
        expected = len(results.data.rows)
        fits = {
            name: {
                "a": law.a,
                "b": law.b,
                "c": law.c,
                "b_interval_95": [law.b_low, law.b_high],
                "runs": law.n,
                "expected": expected,
            }
            for name, law in results.fits.items()
        }
        write_json(folder / FITS, fits)
    else:
        (folder / FITS).unlink(missing_ok=True)
    write_json(folder / CLAIMS, [asdict(claim) for claim in results.claims])
    return written


def check(name: str, size: SettingName, results: Results) -> list[tuple[str, str, str, Verdict, str]]:
    """The stored runs.csv against what the runs give now: table, row, column, verdict and the values.

    Each entry of each table, then as tables `fits` and `claims` the exponent of each fit and the answer of each claim.

    Raises UserError where no runs.csv is stored.
    """
    stored = stored_results(name, size)
    compared = [
        (new.name, *entry)
        for old, new in zip(stored.tables, results.tables, strict=True)
        for entry in compare_tables(old, new)
    ]
    compared += [("fits", *fit) for fit in compare_fits(stored.fits, results.fits)]
    return compared + [("claims", *claim) for claim in compare_claims(stored.claims, results.claims)]


def stored_results(name: str, size: SettingName) -> Results:
    """Tables, fits and claims of the stored runs.csv. Raises UserError where there is none."""
    experiment = read_experiment(name)
    return _results(name, size, experiment, read_rows(experiment, results_folder(name, size) / RUNS))


def find_table(name: str) -> Table:
    """The table of a path, in any form, or of `EXPERIMENT/TABLE`. Raises UserError that names those there are."""
    made = sorted(EXPERIMENTS.glob(f"*/*/{TABLES}/*.csv"))
    found = [path for path in made if path == Path(name).with_suffix(".csv")]
    found = found or [path for path in made if f"{path.parents[2].name}/{path.stem}" == name]
    if len(found) == 1:
        (path,) = found
        size: SettingName = "full" if path.parents[1].name == "full" else "small"
        tables = stored_results(path.parents[2].name, size).tables
        if table := next((table for table in tables if table.name == path.stem), None):
            return table
    there = ", ".join(map(str, found or made))
    raise UserError(
        f"{name}: {'several tables' if len(found) > 1 else 'no such table'}; give one of: {there or 'none is made yet'}"
    )


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


def origin(table: Table, run: Row) -> list[str]:
    """Of a run behind an entry, whose DVC experiment has a commit: where it comes from, and where its params are."""
    record = results_folder(table.experiment, table.size) / RECORD
    number, recorded = recorded_as(record, run.commit) or (0, None)
    lines = [f"experiment {run.experiment}, commit {run.commit}"]
    if run.baseline:
        here = "" if has_commit(run.baseline) else ", which this clone lacks"
        lines.append(f"started from commit {run.baseline}{here}")
    params = f"params.yaml of sha256 {run.params_sha256}"
    if has_commit(run.commit):
        return [*lines, f"{params}: git show {run.commit[:10]}:./params.yaml"]
    lines.append("this clone lacks the experiment's commit; `dvc exp pull` brings it where it was pushed")
    return [*lines, f"{params}: `params` in line {number} of {record}" if recorded else f"{params}: not recorded"]
