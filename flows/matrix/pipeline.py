"""`parrotflow table NAME --matrix`: the grid of an experiment as DVC's `matrix` stages, for plain `dvc repro`.

    experiments/NAME/SIZE/        a DVC project of its own, with the cache of the main one
      dvc.yaml                    each stage of the main dvc.yaml up to the targets, once for each cell; then the table
      cells/CELL/                 where the stages of a cell run
        params.yaml               that of the cell
        stages, corpus, ...       links to the project's files
        data, reports, ...        what the stages write
        run.json                  the cell's parameters and results, for the table

A project of its own: `dvc repro`, `dvc metrics show` and `parrotflow run` of the main one do not see the cells. Within
a cell all paths are those of the main pipeline, so that a stage which ran there, or in another cell, is restored.
"""

import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from dvc.exceptions import DvcException

from flows.dvc_repo.internals import open_repo
from flows.dvc_repo.lock_file import DVC_FILE, LOCK_FILE
from flows.experiments.cells import cells_of
from flows.experiments.experiment import (
    EXPERIMENTS,
    Experiment,
    SettingName,
    experiment_path,
    read_experiment,
    results_folder,
)
from flows.experiments.runs import CELLS, RUN_FILE
from flows.experiments.stored import TABLES
from flows.project import yaml_text
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import STATE_DIR, UserError
from stages.runtime.section import PARAMS_FILE, read_params_file

OWN_OF_A_CELL = {str(PARAMS_FILE), LOCK_FILE, str(EXPERIMENTS)}
"""What is not linked into a cell; nor are hidden files, and what the stages write."""

SHARED = (STATE_DIR / "cache", STATE_DIR / "code")
"""Hidden folders that are linked: shards of data stages, and texts of code; both are named by their content."""

ALL_CELLS = "cells_of_the_experiment"
"""A variable of the dvc.yaml; a section of params.yaml must not be called so."""

IGNORE = Path(".dvcignore")

ONLY_GIT = "/*/*\n!/*/params.yaml\n!/*/run.json\n"
"""Of the cells git keeps the parameters and the runs; the links are made again by the same command."""

SETTINGS = """\
[core]
    analytics = false
[cache]
    dir = {cache}
    type = "reflink,hardlink,copy"
"""


def write_matrix(name: str, size: SettingName) -> tuple[Path, int]:
    """Write the pipeline of an experiment; its folder, and the number of cells. What is there already is kept.

    Raises UserError on faults of the file, and where dvc.yaml has what cannot be repeated for each cell.
    """
    experiment = read_experiment(name)
    cells = cells_of(name, experiment, size)
    values = read_params_file()
    folder = results_folder(name, size)
    with open_repo() as repo:
        try:
            stages = [stage for target in experiment.targets for stage in repo.stage.collect(target, with_deps=True)]
        except DvcException as error:
            raise UserError(f"{experiment_path(name)}: targets: {error}") from None
        names = [stage.addressing for stage in repo.index.stages if stage in stages]
        outs = {Path(out.fs_path).relative_to(repo.root_dir) for stage in stages for out in stage.outs}
        deps = {Path(os.path.relpath(dep.fs_path)) for stage in stages for dep in stage.deps}
        cache = os.path.relpath(repo.cache.local_cache_dir, folder / ".dvc")
    templates = _templates(names)
    for cell in cells:
        within = folder / CELLS / cell.name
        within.mkdir(parents=True, exist_ok=True)
        _link(within, outs, deps - outs)
        _write(within / PARAMS_FILE, yaml_text.dump(cell.params(values)))
        _write(within / IGNORE, f"{_text(IGNORE)}\n/{DVC_FILE}\n")
    _write(folder / CELLS / ".gitignore", ONLY_GIT)
    _write(folder / ".dvc/config", SETTINGS.format(cache=cache))
    _write(folder / ".dvc/.gitignore", "/config.local\n/tmp\n/cache\n")
    pipeline = _pipeline(name, size, experiment, templates, [cell.name for cell in cells])
    head = f"# Written by `parrotflow table {name} --size {size} --matrix`, which replaces it.\n"
    _write(folder / DVC_FILE, head + yaml.safe_dump(pipeline, sort_keys=False, width=10_000))
    return folder, len(cells)


def _templates(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The stages as dvc.yaml has them, without `meta`, which only `parrotflow run` reads."""
    known = yaml.safe_load(DVC_FILE.read_text(encoding="utf-8"))["stages"]
    for name in names:
        if name not in known or not {"matrix", "foreach", "wdir"}.isdisjoint(known[name]):
            raise UserError(
                f"{DVC_FILE}: {name}: a stage of foreach or matrix, with a wdir or in another file cannot be repeated "
                "for each cell; `parrotflow table NAME --commands` runs the cells as DVC experiments"
            )
    return {name: {key: value for key, value in known[name].items() if key != "meta"} for name in names}


def _pipeline(
    name: str, size: SettingName, experiment: Experiment, templates: dict[str, dict[str, Any]], cells: list[str]
) -> dict[str, Any]:
    sources = [*sorted(experiment.reports), *sorted(experiment.curve_sources)]
    record = {
        "desc": "params and results of the cell -> its run",
        "cmd": f"python -m flows.matrix.record ${{item.cell}} {shlex.join(sources)}",
        "deps": sorted({source.partition(":")[0] for source in sources}),
        "params": [{str(PARAMS_FILE): None}],
        "outs": [{RUN_FILE: {"cache": False}}],
    }
    made = ["runs.csv", "claims.json"]
    made += [TABLES] if experiment.tables or experiment.comparisons else []
    made += ["figures"] if experiment.figures else []
    folder, path = results_folder(name, size), experiment_path(name)
    make_table = shlex.join(["python", "-m", "flows.matrix.table", str(path), size])
    table = {
        "desc": "all runs -> tables, figures, claims",
        "cmd": f"cd {os.path.relpath('.', folder)} && {make_table}",
        "deps": [os.path.relpath(path, folder), *(f"{CELLS}/{cell}/{RUN_FILE}" for cell in cells)],
        "outs": [{out: {"cache": False, "persist": True}} for out in made],
    }
    repeated = {
        stage: {
            "matrix": {"cell": f"${{{ALL_CELLS}}}"},
            "wdir": f"{CELLS}/${{item.cell}}",
            "vars": [str(PARAMS_FILE)],  # that of the cell, for what the stage has as ${section.key}
            **template,
        }
        for stage, template in (templates | {"record": record}).items()
    }
    return {"vars": [{ALL_CELLS: cells}], "stages": repeated | {"table": table}}


def _link(cell: Path, outs: set[Path], deps: set[Path]) -> None:
    """Link what the stages may read into a cell's folder; not the folders into which they write."""
    parents = {parent for out in outs for parent in (out, *out.parents)}
    top = {path for path in Path().iterdir() if not path.name.startswith(".") and path.name not in OWN_OF_A_CELL}
    beside_outs = {dep for dep in deps if Path(dep.parts[0]) in parents}
    for path in {*(top - parents), *beside_outs, *SHARED}:
        link = cell / path
        if path in SHARED:
            path.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(path, link.parent))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _write(path: Path, text: str) -> None:
    if _text(path) != text:
        atomic_write(path, text)
