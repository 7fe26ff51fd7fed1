"""The cells of an experiment: a run of the pipeline for each combination of levels and each seed.

A cell's id is derived from its changes of params.yaml, so adding a level or a seed keeps all other cells.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.experiments.drawn import Draw
from flows.experiments.experiment import Experiment, Overrides, bare_name, experiment_path, read_values
from flows.project.compose import preset
from flows.project.edit import apply
from stages.runtime.errors import UserError
from stages.runtime.preflight import section_models
from stages.runtime.section import check_section


@dataclass(frozen=True)
class Cell:
    """A run of the grid."""

    id: str
    name: str
    """The name of its DVC experiment, which ends with the id."""
    levels: dict[str, str]
    """Axis -> level."""
    seed: int
    overrides: Overrides
    """A mapping replaces the one in params.yaml entirely."""

    @property
    def label(self) -> str:
        """The cell's label for the user."""
        return f"{', '.join(self.levels.values())}, seed {self.seed}"

    def params(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """params.yaml's values with the overrides. Raises UserError if a key does not exist."""
        changed = deepcopy(dict(values))
        apply(changed, self.overrides)
        return changed


def read_experiment(name: str) -> Experiment:
    """Read and check an experiment's file, and draw random levels.

    Raises UserError that lists each bad key, its value and the allowed values.
    """
    path = experiment_path(name)
    values = read_values(path)
    axes = values["axes"] if isinstance(values.get("axes"), dict) else {}
    for axis, item in axes.items():
        if isinstance(item, dict) and "draw" in item:
            axes[axis] = check_section(f"axes.{axis}", item, Draw, path).levels()
    return check_section("", values, Experiment, path)


def cells_of(name: str, experiment: Experiment) -> list[Cell]:
    """The cells in the order of the file, seeds last. Raises UserError for unknown choices of conf/ and equal cells."""
    path = experiment_path(name)
    axes = experiment.axes
    try:
        base = resolved(experiment.base)
        cells = []
        for names in itertools.product(*axes.values()):  # the last axis varies fastest
            levels = dict(zip(axes, names, strict=True))
            overrides = over(base, joined_axes({axis: resolved(axes[axis][level]) for axis, level in levels.items()}))
            for seed in experiment.seeds.values:
                cells.append(_cell(name, levels, seed, overrides | dict.fromkeys(experiment.seeds.keys, seed)))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    require_distinct_cells(path, cells)
    return cells


def resolved(overrides: Overrides) -> Overrides:
    """The overrides with choices of conf/ replaced by their values; later keys override earlier ones."""
    by_key: Overrides = {}
    for key, value in overrides.items():
        by_key = over(by_key, {key: value} if "." in key else preset(key, str(value)))
    return by_key


def over(earlier: Overrides, later: Overrides) -> Overrides:
    """Both, with the later ones at the end, so that a section that they replace is replaced last."""
    return {key: value for key, value in earlier.items() if key not in later} | later


def joined_axes(by_axis: Mapping[str, Overrides]) -> Overrides:
    """The overrides of all axes. Raises UserError if two axes set the same key."""
    together: Overrides = {}
    owner: dict[str, str] = {}
    for axis, overrides in by_axis.items():
        for key in overrides:
            if key in owner:
                raise UserError(f"{owner[key]} and {axis} both set {key}; remove it from one")
            owner[key] = axis
        together |= overrides
    return together


def cell_id(overrides: Overrides) -> str:
    """A cell's id, derived from its overrides except `monitoring`."""
    computed = {key: value for key, value in overrides.items() if not key.startswith("monitoring.")}
    content = json.dumps(computed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:8]


def _cell(name: str, levels: dict[str, str], seed: int, overrides: Overrides) -> Cell:
    digits = cell_id(overrides)
    label = re.sub(r"[^A-Za-z0-9]+", "-", "-".join([bare_name(name), *levels.values(), f"seed{seed}"])).strip("-")
    return Cell(digits, f"{label[:60]}-{digits}", levels, seed, overrides)


def check_cells(path: Path, cells: Iterable[Cell], values: Mapping[str, Any]) -> None:
    """Raise UserError, naming the cell and the key, if a cell's values are not valid; `values`: of params.yaml."""
    models = section_models()
    for cell in cells:
        where = f"{path}: cell {cell.label}"
        try:
            changed = cell.params(values)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        for section in sorted(models.keys() & {key.split(".")[0] for key in cell.overrides}):
            try:
                check_section(section, changed[section], models[section], path)
            except UserError as error:
                raise UserError(f"{error} (cell {cell.label})") from None


def require_distinct_cells(path: Path, cells: Iterable[Cell]) -> None:
    """Raise UserError if two cells have the same id or label, or if one overrides a key twice."""
    names: dict[str, str] = {}
    labels: dict[str, str] = {}
    for cell in cells:
        where = f"{path}: cell {cell.label}"
        if cell.id in names:
            raise UserError(f"{where}: the same run as {names[cell.id]}; change its levels or its seed")
        names[cell.id] = f"cell {cell.label}"
        if labels.setdefault(cell.label, cell.id) != cell.id:
            raise UserError(f"{where}: another cell has the same label; rename a level that contains a comma")
        keys = list(cell.overrides)
        for index, key in enumerate(keys):
            if replaced := [earlier for earlier in keys[:index] if earlier.startswith(f"{key}.")]:
                raise UserError(f"{where}: {key} overwrites {', '.join(replaced)}; list {key} first")
