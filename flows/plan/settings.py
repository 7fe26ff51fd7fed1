"""What a user sets, checked before anything runs: params.yaml against the models of all stages, and how a stage is run.

The latter is `meta: {flow: ...}` in dvc.yaml, which DVC leaves out of its hash:

train:
  meta:
    flow:
      retries: 2
      resources: [accelerator]
"""

import importlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stages.runtime.credentials import refuse_credentials
from stages.runtime.errors import UserError
from stages.runtime.section import PARAMS_FILE, Section, check_section, read_params_file
from stages.runtime.stage import DVC_FILE

URLS = ("PARROTFLOW_MIRROR",)
"""Variables that hold one which stages name in what they print and write."""

_INTERPOLATED = re.compile(r"\$\{\s*([\w-]+)")


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
    require_texts_as_keys(values, str(path))
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


def require_texts_as_keys(values: Mapping[Any, Any], place: str) -> None:
    """Raise UserError at a key that YAML takes for a number, a date or nothing: values are named and sorted by keys."""
    for key, value in values.items():
        if not isinstance(key, str):
            raise UserError(f"{place}: the key {key} is no text in YAML; write it in quotes")
        if isinstance(value, Mapping):
            require_texts_as_keys(value, f"{place}: {key}")


def section_warnings(to_do: Collection[str], path: Path = PARAMS_FILE) -> list[str]:
    """Warnings about values that stages would refuse only at their end. The sections were checked before."""
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
        stages = filter(None, yaml.safe_load(text)["stages"].values())  # of one without keys DVC says so
        templates = [stage.get("do", stage) for stage in stages]
        entries = [entry for template in templates for entry in template.get("params") or ()]
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        return  # DVC reports a dvc.yaml without valid stages
    for entry in entries:
        files = entry if isinstance(entry, dict) else {PARAMS_FILE: (entry,)}
        keys = (key for file, own in files.items() if Path(file).name == PARAMS_FILE.name for key in own or ())
        yield from (str(key).split(".")[0] for key in keys)


class FlowSetting(BaseModel):
    """A setting in dvc.yaml; an unknown key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CurveFigure(FlowSetting):
    """A figure of curves that a stage writes while it works."""

    title: str
    """The figure's title."""
    y: str = ""
    """What the vertical axis shows, with its unit."""
    series: dict[str, Annotated[str, Field(pattern=r"^[^:]+\.(tsv|csv):[^:]+$")]]
    """Label -> FILE:COLUMN of a table with a header; the horizontal axis is the table's first column."""


class Show(FlowSetting):
    """What a run shows of a stage that is up to date. A file or key that does not exist is left out."""

    metrics: dict[str, Annotated[str, Field(pattern=r"^[^:]+:[^:]+$")]] = {}
    """Label -> FILE:KEY of a JSON file: under the summary of a run."""
    curves: tuple[CurveFigure, ...] = ()
    """On the run's page in the Prefect UI."""
    next: str = ""
    """A line for the end of a successful run: what to try next; `{FILE:KEY}` in it is replaced by the value, quoted for
    a shell."""


class Program(FlowSetting):
    """A program that belongs to a stage and is not its command. No shell runs it."""

    command: Annotated[str, Field(min_length=1)]
    """The program and its arguments."""
    when: Any = True
    """It is not started if this is null, false or empty: name a parameter, e.g. `${publish.repository}`."""
    makes_changes: bool = False
    """It changes something outside the project, so only `run` starts it: `why` is a question."""


class Policy(FlowSetting):
    """Retries, resources, check and pages of one stage."""

    retries: Annotated[int, Field(ge=0)] = 0
    """After transient failures (a network, a service); no other failure is tried again."""
    retry_delay_seconds: Annotated[float, Field(ge=0)] = 30.0
    """Before each retry; the stage holds no slot while it waits."""
    resources: tuple[str, ...] = ()
    """Names; stages that share one run one after the other."""
    check: Program | None = None
    """Says whether the stage can succeed, and what it would cost. `why` and `run` start it before anything else, if the
    stage may run. If it fails, nothing is started; exit code 69 (a network or a service does not answer) is a warning.
    """
    show: Show = Show()
    """What is shown of the stage."""


def read_policy(name: str, meta: Mapping[str, Any] | None) -> Policy:
    """The policy in a stage's `meta`. Raises UserError that names the stage, the key and what is allowed."""
    try:
        return Policy.model_validate((meta or {}).get("flow") or {})
    except ValidationError as error:
        faults = [
            f"dvc.yaml: {name}.meta.flow.{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        ]
        raise UserError("\n".join(faults)) from None
