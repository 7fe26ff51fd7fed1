"""Checks before the first stage of a run: params.yaml as a whole, and the files that it names.

`parrotflow` checks the sections of the stages that it is about to run. Under plain `dvc repro` each stage checks all
sections at its start.
"""

import importlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError

from stages.runtime.credentials import refuse_credentials
from stages.runtime.errors import STAGES_TO_DO, UserError, first_line
from stages.runtime.section import PARAMS_FILE, Section, check_section, named_files, read_params_file, read_yaml

DVC_FILE = Path("dvc.yaml")

GITMODULES = Path(".gitmodules")
LOCK_FILE = Path("dvc.lock")

LOCK_REMEDY = f"`git checkout {LOCK_FILE}` restores the committed one; else delete it (the cache has the results)"

_INTERPOLATED = re.compile(r"\$\{\s*([\w-]+)")


def section_models(root: Path = Path()) -> dict[str, type[Section]]:
    """The model of each stage's section: `NameParams` in params.py of the package NAME, which may be nested.

    Another project may have a folder `stages` with other files of that name.
    """
    models: dict[str, type[Section]] = {}
    for path in sorted((root / "stages").rglob("params.py")):
        name = path.parent.name
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        try:
            model = getattr(importlib.import_module(module), f"{name.capitalize()}Params", None)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise  # a library is missing, not this module
            model = None
        if model is not None:
            models[name] = model
    return models


def check_params(path: Path = PARAMS_FILE, values: dict[str, Any] | None = None) -> None:
    """Raise UserError that names every unknown section, unknown key and value out of range.

    `values` replace those of the file. URLs with credentials are refused too, also in dvc.yaml and the environment. A
    project without our stages has no models and needs no params.yaml; nothing is checked there.
    """
    models = section_models()
    if not models:
        return
    refuse_credentials("PARROTFLOW_MIRROR", os.environ.get("PARROTFLOW_MIRROR", ""))
    refuse_credentials(str(DVC_FILE), DVC_FILE.read_text(encoding="utf-8") if DVC_FILE.exists() else "")
    values = read_params_file(path) if values is None else values
    require_string_keys(values, str(path))
    others = values.keys() - models.keys() - set(_sections_of_dvc_yaml())
    faults = [f"{path}: {name}: no stage of {DVC_FILE.name} has such a section" for name in sorted(others)]
    for name, model in models.items():
        if name not in values:
            faults.append(
                f"{path}: section `{name}` is missing; after an upgrade take it from the new version's {PARAMS_FILE}"
            )
            continue
        try:
            check_section(name, values[name], model, path)
        except UserError as error:
            faults.append(str(error))
    if faults:
        raise UserError("\n".join(faults))


def require_string_keys(values: Mapping[Any, Any], place: str) -> None:
    """Raise UserError if a key is not a string, because values are named and sorted by keys."""
    for key, value in values.items():
        if not isinstance(key, str):
            shown = json.dumps(key, default=str)
            raise UserError(f"{place}: the key {shown} is not a string; quote it")
        if isinstance(value, Mapping):
            require_string_keys(value, f"{place}: {key}")


def check_before_run(to_do: Collection[str] | None = None, values: Mapping[str, Any] | None = None) -> None:
    """Raise UserError that names every fault that the stages `to_do` (None: all) would report only later.

    `values` are those of params.yaml, with valid sections.
    """
    models = {name: model for name, model in section_models().items() if to_do is None or name in to_do}
    values = read_params_file() if models and values is None else values or {}
    sections = {name: check_section(name, values[name], model) for name, model in models.items()}
    listed = (fault for name, section in sections.items() for fault in (*section.check(values), *_files(name, section)))
    if faults := [*(f"{PARAMS_FILE}: {fault}" for fault in listed), *_empty_submodules(to_do)]:
        raise UserError("\n".join(faults))


def check_unless_checked() -> None:
    """Check all of params.yaml at the start of a stage, unless its run has done so.

    A machine that runs only one stage may lack libraries of others, so nothing is checked there.
    """
    if STAGES_TO_DO not in os.environ:
        with suppress(ModuleNotFoundError):
            check_params()
            check_before_run()


def _files(name: str, section: Section) -> Iterator[str]:
    """Yield faults: files in a section that are missing, or whose changes DVC would not notice."""
    made = [path for stage in stage_templates().values() for path in listed_paths(stage, "outs")]
    readers = stages_running(type(section).__module__.removesuffix(".params"))
    for parameter, file in named_files(name, section):
        path = file.path
        is_made = lies_in(path, made) or any(Path(f"{place}.dvc").exists() for place in (path, *path.parents))
        if not path.exists() and not is_made:
            yield f"{parameter}: {path} is missing: put it there, or correct the path"
            continue
        for stage, template in readers.items():
            if file.is_dep and not lies_in(path, listed_paths(template, "deps")):
                yield (
                    f"{parameter}: {path} is not among the deps of {stage} in {DVC_FILE}, so a change would go "
                    "unnoticed: add it there"
                )


def _empty_submodules(to_do: Collection[str] | None) -> Iterator[str]:
    """Yield faults: git submodules that a stage reads and that are not checked out."""
    text = GITMODULES.read_text(encoding="utf-8") if GITMODULES.exists() else ""
    names = None if to_do is None else {name.partition("@")[0] for name in to_do}
    for link in map(Path, re.findall(r"^\s*path\s*=\s*(.+?)\s*$", text, re.MULTILINE)):
        is_empty = not (link.is_dir() and any(link.iterdir()))
        for name, template in stage_templates().items():
            if is_empty and (names is None or name in names) and lies_in(link, listed_paths(template, "deps")):
                yield (
                    f"{link}: a git submodule without its files, and {name} reads it: `git submodule update --init` "
                    "brings them"
                )
                break


def stage_templates() -> dict[str, dict[str, Any]]:
    """The stages of dvc.yaml by name; `foreach` and matrix stages are templates. Empty if the file is not valid."""
    try:
        stages = read_yaml(DVC_FILE.read_bytes())["stages"].items()
        return {name: stage.get("do", stage) for name, stage in stages if stage}
    except (OSError, YAMLError, KeyError, TypeError, AttributeError):
        return {}


def recorded_stages(path: Path = LOCK_FILE, *, trusted: bool = True) -> dict[str, dict[str, Any]]:
    """The entries of a dvc.lock by stage; empty if the file is missing. `trusted`: as in `read_yaml`.

    Raises UserError if it is not YAML.
    """
    try:
        content = read_yaml(path.read_bytes(), trusted=trusted)
    except FileNotFoundError:
        return {}
    except YAMLError as error:
        raise UserError(f"{path}: not valid YAML ({first_line(error)}); {LOCK_REMEDY}") from None
    return (content or {}).get("stages") or {}


def stages_running(module: str) -> dict[str, dict[str, Any]]:
    """The stages of dvc.yaml whose command runs a module."""
    command = re.compile(rf"\s-m\s+{re.escape(module)}(?![\w.])")  # with any Python, also among several commands
    return {name: stage for name, stage in stage_templates().items() if command.search(str(stage.get("cmd", "")))}


def listed_paths(stage: Mapping[str, Any], kind: str) -> list[str]:
    """The `deps` or `outs` of a stage, without those whose path depends on a parameter."""
    paths = (next(iter(entry)) if isinstance(entry, dict) else entry for entry in stage.get(kind) or ())
    return [path for path in paths if "${" not in path]


def lies_in(path: Path, places: Iterable[str]) -> bool:
    """True if a path is one of `places` or below one. Links to folders are resolved, as DVC does not follow them."""
    all_places = (path, *map(Path, places))
    real, *others = (place.resolve() if place.is_dir() else place.parent.resolve() / place.name for place in all_places)
    return any(real.is_relative_to(other) for other in others)


def _sections_of_dvc_yaml() -> Iterator[str]:
    """Yield the sections that dvc.yaml uses, in params or as `${section.key}`, also in stages of the user."""
    if not DVC_FILE.exists():
        return
    yield from _INTERPOLATED.findall(DVC_FILE.read_text(encoding="utf-8"))
    for entry in (entry for stage in stage_templates().values() for entry in stage.get("params") or ()):
        files = entry if isinstance(entry, dict) else {PARAMS_FILE: (entry,)}
        keys = (key for file, listed in files.items() if Path(file).name == PARAMS_FILE.name for key in listed or ())
        yield from (str(key).split(".")[0] for key in keys)
