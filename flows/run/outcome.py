"""The options of a run, and the results of it and its stages."""

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
"""Exit codes of failures that may go away, or of a stage that was stopped and can continue. A stage that has no handler
yet ends by the signal itself."""

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of a killed program, and of a shell whose program was killed."""

AsJson = Annotated[
    bool, Parameter(name="--json", help="End with one line of JSON, for other programs.", show_default=False)
]
"""The option of commands that return facts; `flows.cli.run_command_line` prints them."""


def stage_names(_: object) -> list[str]:
    """Return the targets that the shell completes."""
    return list(stage_templates())


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run, as the user gives them."""

    targets: Annotated[tuple[str, ...], Parameter(completer=stage_names)] = ()
    """Stages of dvc.yaml, with the stages that they depend on; the default is all stages."""
    _: KW_ONLY
    force: bool = False
    """Also run stages that are up to date: the targets, and all stages that they depend on."""
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
    """unchanged: DVC found that the inputs were the same after all (early cut-off); restored: from the run-cache;
    recorded: it has no command, and DVC recorded its outputs as they were; refused: it or an upstream stage refused its
    input; stopped: together with the run."""
    seconds: float = 0.0
    message: str = ""
    """The stage's own error message if it failed."""
    exit_code: int = 0
    """The exit code of the stage's command; negative for a signal."""
    next_attempt_seconds: float | None = None
    """The delay before the next attempt; None if this was the last."""

    @property
    def good(self) -> bool:
        """True if the stage is up to date now."""
        return self.result in GOOD

    @property
    def may_pass(self) -> bool:
        """True if the same command may succeed later: it was stopped or killed, or a service did not answer."""
        return self.result == "stopped" or (self.result == "failed" and self.exit_code in TRANSIENT + KILLED)

    @property
    def transient(self) -> bool:
        """True if the failure may go away by itself, so that a retry can help."""
        return self.result == "failed" and self.exit_code in TRANSIENT


def with_stage_name(stage: str, message: str) -> str:
    """Put a stage's name before its message, unless the message begins with it."""
    return message if message.startswith((f"{stage}:", f"{stage}.")) else f"{stage}: {message}"


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    state: Literal["Completed", "Refused", "Failed", "Cancelled"]
    """A refusal by a stage (exit code 77) is not a failure in Prefect."""
    message: str

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return {"Failed": 1, "Cancelled": EXIT_CONTINUE, "Refused": EXIT_REFUSED}.get(self.state, 0)


def run_result(outcomes: Mapping[str, StageOutcome], stopped: bool, otherwise: str) -> RunResult:
    """Return a run's result, from the outcomes of its stages. `otherwise` is the message of a successful run."""
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
