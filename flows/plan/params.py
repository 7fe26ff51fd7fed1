"""params.yaml checked whole, before anything runs, against the models of all stages."""

import importlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import yaml

from stages.runtime.credentials import refuse_credentials
from stages.runtime.entry import UserError
from stages.runtime.inputs import DVC_FILE
from stages.runtime.section import PARAMS_FILE, Section, check_section, read_params_file

URLS = ("PARROTFLOW_MIRROR",)
"""Variables that hold one which stages name in what they print and write."""

_INTERPOLATED = re.compile(r"\$\{(\w+)")


def section_models(root: Path = Path()) -> dict[str, type[Section]]:
    """The model of each stage's section: `NameParams` in params.py of the package NAME, which may lie in another's.

    Another project may have a folder `stages` too, with files of that name.
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


def check_params(path: Path = PARAMS_FILE) -> None:
    """Raise UserError that names every unknown section, unknown key and value out of range.

    A URL with a credential is refused too, also in dvc.yaml and in the environment. A project without stages of ours
    has no models: nothing is checked there, and it needs no params.yaml.
    """
    models = section_models()
    if not models:
        return
    for variable in URLS:
        refuse_credentials(variable, os.environ.get(variable, ""))
    refuse_credentials(str(DVC_FILE), DVC_FILE.read_text(encoding="utf-8") if DVC_FILE.exists() else "")
    values = read_params_file(path)
    others = values.keys() - models.keys() - set(_sections_of_dvc_yaml())
    faults = [f"{path}: {name}: no stage has such a section" for name in sorted(others)]
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


def section_warnings(to_do: Collection[str], path: Path = PARAMS_FILE) -> list[str]:
    """What stages that are to run would refuse only at their end. The sections were checked before."""
    models = {name: model for name, model in section_models().items() if name in to_do}
    values = read_params_file(path) if models else {}
    return [
        warning
        for name, model in models.items()
        for warning in check_section(name, values[name], model, path).warnings(values)
    ]


def _sections_of_dvc_yaml() -> Iterator[str]:
    """The sections that dvc.yaml uses, also for stages of the user's own: listed as params, or as `${section.key}`."""
    if not DVC_FILE.exists():
        return
    text = DVC_FILE.read_text(encoding="utf-8")
    yield from _INTERPOLATED.findall(text)
    try:
        stages = (yaml.safe_load(text) or {}).get("stages") or {}
    except yaml.YAMLError:
        return  # DVC says what is wrong with it
    for stage in stages.values():
        for entry in stage.get("do", stage).get("params") or ():
            keys = (entry.get(str(PARAMS_FILE)) or ()) if isinstance(entry, dict) else (entry,)
            yield from (key.split(".")[0] for key in keys)
