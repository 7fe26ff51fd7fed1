"""How a stage is run: `meta: {flow: ...}` in dvc.yaml, which is not part of DVC's hash.

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
    """A setting in dvc.yaml; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CurveFigure(FlowSetting):
    """A figure of curves that a stage writes while it runs."""

    title: str
    """The figure's title."""
    y: str = ""
    """The label of the vertical axis, with its unit."""
    series: dict[str, Annotated[str, Field(pattern=r"^[^:]+\.(tsv|csv):[^:]+$")]]
    """Label -> FILE:COLUMN of a table with a header. Its first column is the horizontal axis. FILE:* shows all other
    columns, labeled by their names."""


class Show(FlowSetting):
    """Results of an up-to-date stage that a run shows. Missing files and keys are skipped."""

    metrics: dict[str, Annotated[str, Field(pattern=r"^[^:]+:[^:]+$")]] = {}
    """Label -> FILE:KEY of a number in a JSON file, for the summary of a run."""
    curves: tuple[CurveFigure, ...] = ()
    """Figures for the run's page."""
    pages: dict[str, str] = {}
    """Title -> a page to read, which is named at the end of a successful run and linked on its page."""
    next: str = ""
    """What to try next, printed at the end of a successful run; `{FILE:KEY}` is replaced by the value, quoted for a
    shell."""


class Program(FlowSetting):
    """A program of a stage besides its command, started without a shell."""

    command: Annotated[str, Field(min_length=1)]
    """The program and its arguments."""
    when: Any = True
    """The program is not started if this is null, false or empty. It can be a parameter: `${publish.repository}`."""
    makes_changes: bool = False
    """The program changes something outside of the project, so only `run` starts it, not `why`."""


class Policy(FlowSetting):
    """Retries, resources, check and results of a stage."""

    retries: Annotated[int, Field(ge=0)] = 0
    """The number of retries after transient failures (a network, a service). Other failures are not retried."""
    retry_delay_seconds: Annotated[float, Field(ge=0)] = 30.0
    """The delay before each retry, in which the stage occupies no slot."""
    resources: tuple[str, ...] = ()
    """Names of resources; stages that share one do not run at the same time."""
    check: Program | None = None
    """Checks that the stage can succeed, and prints its cost. If the stage may run, `why` and `run` start the check
    before anything else. If it fails, nothing is started; exit code 69 (a network or a service does not answer) is only
    a warning."""
    show: Show = Show()
    """The results of the stage that a run shows."""


def read_policy(name: str, meta: Mapping[str, Any] | None) -> Policy:
    """The policy in a stage's `meta`. Raises UserError that lists each bad key."""
    try:
        return Policy.model_validate((meta or {}).get("flow") or {})
    except ValidationError as error:
        faults = [
            f"dvc.yaml: {name}.meta.flow.{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        ]
        raise UserError("\n".join(faults)) from None
