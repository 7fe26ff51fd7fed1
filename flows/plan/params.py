"""params.yaml checked whole, before anything runs, against the models of all stages."""

import importlib
import re
from pathlib import Path

from stages.runtime.entry import UserError
from stages.runtime.section import PARAMS_FILE, Section, check_section, read_params_file

DVC_FILE = Path("dvc.yaml")


def section_models(root: Path = Path()) -> dict[str, type[Section]]:
    """The model of each stage's section: `stages.NAME.params.NameParams`."""
    models: dict[str, type[Section]] = {}
    for path in sorted((root / "stages").glob("*/params.py")):
        name = path.parent.name
        module = importlib.import_module(f"stages.{name}.params")
        models[name] = getattr(module, f"{name.capitalize()}Params")
    return models


def check_params(path: Path = PARAMS_FILE) -> None:
    """Raise UserError that names every unknown section, unknown key and value out of range."""
    values = read_params_file(path)
    models = section_models()
    # A section that dvc.yaml speaks of belongs to a stage of the user's own.
    dvc_yaml = DVC_FILE.read_text(encoding="utf-8") if DVC_FILE.exists() else ""
    others = [name for name in values if name not in models and not re.search(rf"\b{re.escape(name)}\b", dvc_yaml)]
    faults = [f"{path}: {name}: no stage has such a section" for name in others]
    for name, model in models.items():
        if name not in values:
            faults.append(f"{path}: section `{name}` is missing")
            continue
        try:
            check_section(name, values[name], model, path)
        except UserError as error:
            faults.append(str(error))
    if faults:
        raise UserError("\n".join(faults))
