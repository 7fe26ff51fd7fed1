"""The options of a run, and how it and its stages end."""

import signal
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from stages.runtime.errors import EXIT_CONTINUE, EXIT_REFUSED, EXIT_TERMINATED, EXIT_UNAVAILABLE, UserError
from stages.runtime.preflight import stage_templates

StageResult = Literal["ran", "unchanged", "restored", "recorded", "refused", "failed", "stopped"]

GOOD = ("ran", "unchanged", "restored", "recorded")
"""The results of a stage that is up to date."""

TRANSIENT = (EXIT_UNAVAILABLE, EXIT_CONTINUE, EXIT_REFUSED, EXIT_TERMINATED, -signal.SIGTERM)
"""Exit codes of failures that may go away, or of a stage that was stopped and continues when it is started again. It
ends by the signal itself before it has a handler."""

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of a program that was killed, and of a shell whose program was."""


AsJson = Annotated[bool, Parameter(name="--json", help="End with one line of JSON, for other programs.")]
"""The option of commands that return facts; `flows.cli.run_command_line` prints them."""


def stage_names(_: object) -> list[str]:
    """What the shell completes a target with."""
    return list(stage_templates())


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run, as the user gives them."""

    targets: Annotated[tuple[str, ...], Parameter(completer=stage_names)] = ()
    """Stages of dvc.yaml, with the stages that they depend on; the default is all stages."""
    _: KW_ONLY
    force: bool = False
    """Run them even if they are up to date."""
    pull: bool = False
    """Fetch missing results from the DVC remote."""
    wait: bool = False
    """Wait for another run in this folder instead of refusing."""
    note: str = ""
    """A few words about the run, for `parrotflow log` and the Prefect UI."""


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """How a stage ended."""

    name: str
    result: StageResult
    """unchanged: DVC found that nothing changed after all (early cut-off); restored: from the run-cache; recorded: as
    somebody left its outputs, where it has no command; refused: the stage, or one before it, refused its
    input; stopped: with the run, or given up early."""
    seconds: float = 0.0
    message: str = ""
    """The stage's own error message if it failed."""
    exit_code: int = 0
    """The exit code of the stage's command; negative for a signal."""
    next_attempt_seconds: float | None = None
    """The delay before the next attempt; None if this was the last."""

    @property
    def good(self) -> bool:
        """Whether the stage is up to date now."""
        return self.result in GOOD

    @property
    def may_pass(self) -> bool:
        """Whether the same command may succeed later: it was stopped or killed, or something did not answer."""
        return self.result == "stopped" or (self.result == "failed" and self.exit_code in TRANSIENT + KILLED)

    @property
    def transient(self) -> bool:
        """Whether the failure may go away by itself, so that a retry can help."""
        return self.result == "failed" and self.exit_code in TRANSIENT


def with_stage_name(stage: str, message: str) -> str:
    """A stage's message after its name, with which many begin by themselves."""
    return message if message.startswith((f"{stage}:", f"{stage}.")) else f"{stage}: {message}"


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    state: Literal["Completed", "Refused", "Failed", "Cancelled"]
    """Refused by a stage (exit code 77) is not a failure in Prefect."""
    message: str

    @property
    def exit_code(self) -> int:
        """The exit code of the command that ran it."""
        return {"Failed": 1, "Cancelled": EXIT_CONTINUE, "Refused": EXIT_REFUSED}.get(self.state, 0)


def run_result(outcomes: Mapping[str, StageOutcome], stopped: bool, otherwise: str) -> RunResult:
    """How a run ended, from how its stages did. `otherwise` is the message if all went well."""
    if stopped:
        return RunResult("Cancelled", "stopped; run the same command to continue")
    failed = [outcome for outcome in outcomes.values() if outcome.result == "failed"]
    if failed:
        return RunResult("Failed", "; ".join(with_stage_name(outcome.name, outcome.message) for outcome in failed))
    refused = [outcome for outcome in outcomes.values() if outcome.result == "refused"]
    if refused:
        return RunResult("Refused", refused[0].message)
    return RunResult("Completed", otherwise)


class StoppedByUserError(UserError):
    """Stopped by the user."""

    exit_code = EXIT_CONTINUE
