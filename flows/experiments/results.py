"""`parrotflow table NAME`: from the runs that there are to tables, figures and checked claims.

The runs are those of the record, which a sweep writes. The results are written to `experiments/NAME/SIZE/`: runs.csv
(tidy data, which `parrotflow cell` and `--check` read) and what is made of it: tables/ (.tex, .md, .html, .csv),
figures/ (.pdf, .svg, .png), fits.json and claims.json.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from flows.dvc_repo.cache import has_commit, reach
from flows.experiments.cells import cells_of, read_experiment
from flows.experiments.claims import CheckedClaim, check_claims, fit_of
from flows.experiments.experiment import SettingName, results_folder
from flows.experiments.forms import write_figure, write_forms
from flows.experiments.rows import CELL_REPORT, Tidy, lacking, read_rows, rows_csv, tidy
from flows.experiments.runs import RECORD, Run, recorded_runs, runs_that_count
from flows.experiments.statistics import SIGNIFICANT, PowerLaw, Valley
from flows.experiments.tables import Entry, Table, differences_table, means_table
from flows.experiments.yaml_file import EXPERIMENTS, bare_name, experiment_path
from stages.formats.reports import stable, write_json
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError
from stages.runtime.section import read_params_file

RUNS, TABLES, FITS, CLAIMS = "runs.csv", "tables", "fits.json", "claims.json"
"""In the folder of an experiment's results. Tables, fits and claims are made of the first, and never read."""


@dataclass(frozen=True)
class Results:
    """What the runs give, computed but not written."""

    data: Tidy
    tables: list[Table]
    fits: dict[str, PowerLaw | Valley]
    unfitted: dict[str, str]
    """Fits for which there are too few runs, and why."""
    claims: list[CheckedClaim]


def compute(name: str, size: SettingName, runs: Iterable[Run] | None = None) -> Results:
    """Tables, fits and claims of the runs that there are, or of those given. Raises UserError on faults of the file."""
    experiment = read_experiment(name, size)
    cells = cells_of(name, experiment, size)
    reached, values = reach(experiment.targets), read_params_file()
    # What no stage of a run writes is in its commit as it was in the one from which the run was started.
    curves = {source.partition(":")[0] for source in experiment.curve_sources}
    reached.require_written(experiment_path(name), experiment.reports - {CELL_REPORT} | curves)
    if runs is None:
        runs = runs_that_count(results_folder(name, size) / RECORD, cells, values, reached.params).values()
    return _results(tidy((bare_name(name), size), experiment, cells, runs, values, reached.params), name)


def _results(data: Tidy, name: str) -> Results:
    experiment = data.experiment
    fits: dict[str, PowerLaw | Valley] = {}
    unfitted: dict[str, str] = {}
    try:
        for fit in experiment.fits:
            try:
                fits[fit] = fit_of(data, fit)
            except ValueError as error:
                unfitted[fit] = str(error)
        tables = [means_table(data, table) for table in experiment.tables]
        tables += [differences_table(data, comparison) for comparison in experiment.comparisons]
        return Results(data, tables, fits, unfitted, check_claims(data))
    except UserError as error:
        raise UserError(f"{experiment_path(name)}: {error}") from None


def write_results(name: str, size: SettingName, results: Results) -> list[Path]:
    """Write all of it, each file whole; the paths."""
    folder = results_folder(name, size)
    atomic_write(folder / RUNS, rows_csv(results.data))
    written = [folder / RUNS]
    for table in results.tables:
        written += write_forms(folder / TABLES, table)
    lines = {name: law for name, law in results.fits.items() if isinstance(law, PowerLaw)}
    for figure in results.data.experiment.figures:
        written += write_figure(folder / "figures", results.data, figure, lines)
    if results.data.experiment.fits:  # also where none is left: no fit of runs that are no longer there
        write_json(folder / FITS, {name: _fit_as_json(results.data, name, law) for name, law in results.fits.items()})
    else:
        (folder / FITS).unlink(missing_ok=True)
    write_json(folder / CLAIMS, [asdict(claim) for claim in results.claims])
    return written


def _fit_as_json(data: Tidy, name: str, law: PowerLaw | Valley) -> dict[str, Any]:
    """Figures of the law, their intervals, and what it says of the sizes that are asked."""
    found = {"b": law.b, "b_interval_95": list(law.b_interval), "runs": law.n, "expected": len(data.frame)}
    if isinstance(law, PowerLaw):
        return {"a": law.a, "c": law.c} | found
    predicted = {
        label: {"at": at, "value": law.at(*at), "interval_95": list(law.interval(*at)), "best_z": law.best(at[0])}
        for label, at in data.experiment.fits[name].predict.items()
    }
    return {"coefficients": list(map(stable, law.coefficients))} | found | {"predict": predicted}


def stored_results(name: str, size: SettingName) -> Results:
    """Tables, fits and claims of the stored runs.csv. Raises UserError where there is none."""
    experiment = read_experiment(name, size)
    data = read_rows((bare_name(name), size), experiment, results_folder(name, size) / RUNS)
    return _results(data, name)


def find_table(name: str) -> Table:
    """The table of a path, in any form, or of `EXPERIMENT/TABLE`. Raises UserError that names those there are."""
    made = sorted(EXPERIMENTS.glob(f"*/*/{TABLES}/*.csv"))
    found = [path for path in made if Path(name).parent == path.parent and Path(name).stem == path.stem]
    found = found or [path for path in made if f"{path.parents[2].name}/{path.stem}" == name]
    if len(found) == 1:
        (path,) = found
        size: SettingName = "full" if path.parents[1].name == "full" else "small"
        tables = stored_results(path.parents[2].name, size).tables
        if table := next((table for table in tables if table.name == path.stem), None):
            return table
    if found:
        raise UserError(f"{name}: several tables; give one of: {', '.join(map(str, found))}")
    there = sorted({f"{path.parents[2].name}/{path.stem}" for path in made})
    raise UserError(f"{name}: no such table; give one of: {', '.join(there) or 'none is made yet'}")


def summary(results: Results) -> Sequence[str]:
    """What a person reads first: the runs, the fits, the claims."""
    frame = results.data.frame
    states = ", ".join(f"{count} {state}" for state, count in Counter(frame["state"]).items())
    lines = [f"{len(frame)} runs: {states}"]
    lines += results.data.notes
    for name, law in results.fits.items():
        count = lacking(law.n, len(frame))
        lines.append(f"{name}: {_in_words(law)}{count and f', {count}'}")
        if isinstance(law, Valley):
            for label, at in results.data.experiment.fits[name].predict.items():
                low, high = law.interval(*at)
                lines.append(f"{name}: predicts {law.at(*at):.4g} [{low:.4g}, {high:.4g}] (95 %) for {label}")
    lines += [f"{name}: not fitted: {why}" for name, why in results.unfitted.items()]
    return [*lines, *(f"{claim.answer}: {claim.says} ({claim.because})" for claim in results.claims)]


def _in_words(law: PowerLaw | Valley) -> str:
    low, high = law.b_interval
    interval = "no interval of the exponent: a cell has one run"
    if low is not None and high is not None:
        interval = f"exponent in [{low:.4g}, {high:.4g}] (95 %)"
    if isinstance(law, Valley):
        return f"lowest at z = {law.best(1):.4g} x^{law.b:.4g}, {interval}"
    offset = f" + {law.c:.4g}" if law.c else ""
    return f"{law.a:.4g} x^{-law.b:.4g}{offset}, {interval}"


def runs_behind(table: Table, entry: Entry) -> list[str]:
    """The runs of an entry, in lines: the number of each, and where it comes from."""
    lines = []
    for run in entry.runs.to_dict("records"):
        number = run[entry.metric]
        value = f" {number:.6g}" if pd.notna(number) else " without this metric" if run["state"] == "finished" else ""
        lines.append(f"  seed {run['seed']}: {run['state']}{value} {run['message']}".rstrip())
        lines += [f"    {line}" for line in _origin(table, run)] if run["commit"] else []
    return lines


def _origin(table: Table, run: Mapping[Any, Any]) -> list[str]:
    """Of a run whose DVC experiment has a commit: where it comes from, and where its params are."""
    commit, record = run["commit"], results_folder(table.experiment, table.size) / RECORD
    lines = [f"experiment {run['experiment']}, commit {commit}"]
    if run["baseline"]:
        here = "" if has_commit(run["baseline"]) else ", which this clone lacks"
        lines.append(f"started from commit {run['baseline']}{here}")
    params = f"params.yaml of sha256 {run['params_sha256']}"
    if has_commit(commit):
        return [*lines, f"{params}: git show {commit[:10]}:./params.yaml"]
    lines.append("this clone lacks the experiment's commit; `dvc exp pull` brings it where it was pushed")
    is_recorded = any(run.commit == commit for run in recorded_runs(record))
    return [*lines, f"{params}: {f'grep {commit[:10]} {record}' if is_recorded else 'not recorded'}"]


Likeness = Literal["equal", "within intervals", "equal as printed", "different", "gone", "new"]


@dataclass(frozen=True)
class ComparedResult:
    """One entry of a table, the exponent of one fit (table `fits`) or the answer of one claim (table `claims`)."""

    table: str
    row: str
    column: str
    likeness: Likeness
    values: str
    """Both; empty where there is only one."""


def compare(stored: Results, now: Results) -> list[ComparedResult]:
    """Each entry of each table, the exponent of each fit and the answer of each claim of the same file.

    Times, which no two runs share, are left out. Equal: the same number, printed alike, from as many runs. Within
    intervals: the new number is in the old one's 95 % interval, of an entry of one run in the run's own; a p value is
    on the same side of 0.05. Equal as printed: an entry that has no interval, with the same digits. Different is also
    an entry from fewer runs than the old one, and one that is marked as the best only in one of the tables.
    """
    metrics = now.data.experiment.metrics
    times = {name for name, metric in metrics.items() if metric.source.startswith(f"{CELL_REPORT}:")}
    compared = [
        found for old, new in zip(stored.tables, now.tables, strict=True) for found in compare_tables(old, new, times)
    ]
    compared += compare_tables(exponents(stored, times), exponents(now, times))
    for then, claim in zip(stored.claims, now.claims, strict=True):
        likeness: Likeness = "equal" if then.answer == claim.answer else "different"
        compared.append(ComparedResult("claims", claim.says, "answer", likeness, f"{then.answer}, now {claim.answer}"))
    return compared


def exponents(results: Results, without: Collection[str] = ()) -> Table:
    """The fits as a table: of each its exponent with the 95 % interval; without those of some metrics."""
    fits = results.data.experiment.fits
    compared = {name for name, fit in fits.items() if not {fit.x, fit.y, fit.z} & {*without}}
    laws = {name: law for name, law in results.fits.items() if name in compared}
    entries = [
        Entry(f"{law.b:.4g}", law.n, law.n, law.b, *law.b_interval, None, name, results.data.frame)
        for name, law in laws.items()
    ]
    return Table("", "", "fits", "", [], ["exponent"], [[name] for name in laws], [[entry] for entry in entries], [])


def compare_tables(old: Table, new: Table, without: Collection[str] = ()) -> Iterator[ComparedResult]:
    """Each entry of two tables, also one that only one of them has, but for those of some metrics."""
    before, after = (
        {(row, column): entry for row, column, entry in table.each() if entry.metric not in without}
        for table in (old, new)
    )
    for row, column in before | after:
        then, now = before.get((row, column)), after.get((row, column))
        if then is None or now is None:
            yield ComparedResult(new.name, row, column, "new" if then is None else "gone", "")
        else:
            yield ComparedResult(new.name, row, column, _likeness(then, now), f"{_told(then)}, now {_told(now)}")


def _told(entry: Entry) -> str:
    marked = "the best, " if entry.best else ""
    return f"{' '.join(filter(None, (entry.text or 'none', entry.extra)))} ({marked}n = {entry.n})"


def _likeness(then: Entry, now: Entry) -> Likeness:
    if now.n < then.n or now.best != then.best:
        return "different"
    if (then.value, then.low, then.high, then.n) == (now.value, now.low, now.high, now.n):
        return "equal" if then.extra == now.extra else "different"
    if now.value is None:
        return "different"
    if then.is_p and then.value is not None:
        return "within intervals" if (then.value < SIGNIFICANT) == (now.value < SIGNIFICANT) else "different"
    low, high = then.interval_95
    if low is not None and high is not None:
        return "within intervals" if low <= now.value <= high else "different"
    return "equal as printed" if (then.text, then.n) == (now.text, now.n) else "different"


def check(name: str, size: SettingName, results: Results) -> tuple[list[str], bool]:
    """The stored runs.csv against what the runs give now, in lines, and whether no entry is different, gone or new.

    Raises UserError where no runs.csv is stored.
    """
    compared = compare(stored_results(name, size), results)
    lines = [
        f"{found.table}, {found.row}, {found.column}: {found.likeness}: {found.values}"
        for found in compared
        if found.likeness != "equal"
    ]
    summary = f"{len(compared) - len(lines)} of {len(compared)} entries are equal"
    return [*lines, summary], all(found.likeness not in ("different", "gone", "new") for found in compared)
