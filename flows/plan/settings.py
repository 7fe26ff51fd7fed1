"""How a stage is run: `meta: {flow: ...}` in dvc.yaml, which DVC leaves out of its hash.

train:
  meta:
    flow:
      retries: 2
      resources: [accelerator]
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stages.runtime.errors import UserError


class FlowSetting(BaseModel):
    """A setting in dvc.yaml; an unknown key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CurveFigure(FlowSetting):
    """A figure of curves that a stage writes while it works."""

    title: str
    """The figure's title."""
    y: str = ""
    """The label of the vertical axis, with its unit."""
    series: dict[str, Annotated[str, Field(pattern=r"^[^:]+\.(tsv|csv):[^:]+$")]]
    """Label -> FILE:COLUMN of a table with a header; the horizontal axis is the table's first column. FILE:* names
    all other columns, and labels each by its name."""


class Show(FlowSetting):
    """Metrics that a run shows for a stage that is up to date. A missing file or key is left out."""

    metrics: dict[str, Annotated[str, Field(pattern=r"^[^:]+:[^:]+$")]] = {}
    """Label -> FILE:KEY of a number in a JSON file: under the summary of a run."""
    curves: tuple[CurveFigure, ...] = ()
    """On the run's page in the Prefect UI."""
    pages: dict[str, str] = {}
    """Title -> a file for people: named at the end of a successful run, linked on its page."""
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
    """The results of the stage that a run shows."""


def read_policy(name: str, meta: Mapping[str, Any] | None) -> Policy:
    """The policy in a stage's `meta`. Raises UserError that names the stage, the key and what is allowed."""
    try:
        return Policy.model_validate((meta or {}).get("flow") or {})
    except ValidationError as error:
        faults = [
            f"dvc.yaml: {name}.meta.flow.{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        ]
        raise UserError("\n".join(faults)) from None
