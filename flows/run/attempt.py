"""A stage's part of a run: whether it may start, when, and what came of it. Who chains the stages is not known here.

A run has one `Attempts`. `attempt` is called in a thread of the stage's own, once every stage before it has ended well:
a slot and the resources are waited for, then the stage runs as a process. After a failure no further stage starts,
unless `keep_going`; Ctrl-C, SIGTERM and a cancellation end those that run. A failure of a kind that may go away is
tried again as often as the stage's policy says.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flows.run.locks import Devices, Slots, slots_of_this_machine
from flows.run.outcome import Event, Lines, RunOptions, RunResult, StageEnded, StageOutcome, StageProgress, StageStarted
from flows.run.process import StageRequest, StageRunner
from flows.run.programs import SERVER_KEY, redactor
from stages.runtime.entry import UserError

if TYPE_CHECKING:
    from flows.plan.graph import Plan, PlannedStage
    from flows.run.pages import StagePages

PROGRESS_SECONDS = 5.0
"""Between two reports of a stage's progress."""

LONGEST_LINE = 10_000

_COUNT = re.compile(r"(\d[\d,]*)\s*(?:/|of)\s*(\d[\d,]*)")


@dataclass
class Attempts:
    """What the stages of one run share."""

    plan: "Plan"
    options: RunOptions
    runner: StageRunner
    on_event: Callable[[Event], None]
    """Called by the threads of the stages. The stages after one do not start before the call for its end returns."""
    outcomes: dict[str, StageOutcome] = field(default_factory=dict)
    """Of the stages that were begun or refused."""
    slots: Slots = field(default_factory=slots_of_this_machine)
    devices: Devices = field(default_factory=Devices)
    fault: BaseException | None = None
    """Of this program, not of a stage."""

    def __post_init__(self) -> None:
        self.stages = {stage.name: stage for stage in self.plan.to_do}
        self._redact = redactor()
        self._turns = {name: turn for turn, name in enumerate(self.stages)}
        self._tried: dict[str, StageOutcome] = {}
        """The failures of stages that are to be tried again."""
        self._failed = False

    @property
    def cancelled(self) -> bool:
        """Whether the run was stopped."""
        return self.runner.stopping.is_set()

    @property
    def given_up(self) -> bool:
        """Whether no further stage is to start."""
        return self.cancelled or (self._failed and not self.options.keep_going)

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        self.runner.stop()
        self.slots.wake()

    def is_tried_again(self, name: str) -> bool:
        """Whether a stage that has failed is to be attempted once more."""
        return name in self._tried

    def attempt(self, name: str, number: int, before: Sequence[StageOutcome], pages: "StagePages") -> StageOutcome:
        """The `number`-th attempt at a stage, after the outcomes `before`. A fault of this program ends the run."""
        try:
            outcome = self._attempt(self.stages[name], number, before, pages)
        except UserError as error:
            outcome = self._settled(StageOutcome(name, "failed", message=str(error)), number)
        except BaseException as error:
            self.fault = error
            self.stop()
            raise
        if outcome.begun:
            delay = self.stages[name].policy.retry_delay_seconds if self.is_tried_again(name) else None
            self.on_event(StageEnded(name, outcome, delay))
        return outcome

    def _settled(self, outcome: StageOutcome, number: int) -> StageOutcome:
        """Note what an attempt has come to, before its slot is free: the next stage may be one that must not start."""
        name = outcome.name
        if outcome.transient and number <= self.stages[name].policy.retries and not self.given_up:
            self._tried[name] = outcome
        elif outcome.begun:
            self.outcomes[name] = outcome
            self._failed |= outcome.result == "failed"
        return outcome

    def _attempt(
        self, stage: "PlannedStage", number: int, before: Sequence[StageOutcome], pages: "StagePages"
    ) -> StageOutcome:
        name, resources = stage.name, stage.policy.resources
        instead = StageOutcome(name, "stopped", message="not started", begun=False)
        if any(outcome.result == "refused" for outcome in before):
            refused = StageOutcome(name, "refused", message="a stage that it depends on was refused")
            return self._settled(refused, number)
        if failure := self._tried.pop(name, None):
            instead = failure
            self._wait(stage.policy.retry_delay_seconds)
        with self.slots.taken(self._turns[name], resources, lambda: self.given_up) as held:
            if not held:
                return self._settled(instead, number)
            self.on_event(StageStarted(name, number))
            return self._settled(self._run(stage, pages), number)

    def _wait(self, seconds: float) -> None:
        """Wait before a retry; less where the run is stopped or has failed."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.given_up:
            self.runner.stopping.wait(min(left, 0.5))

    def _run(self, stage: "PlannedStage", pages: "StagePages") -> StageOutcome:
        reported = time.monotonic()

        def take(lines: list[str]) -> None:
            nonlocal reported
            texts = tuple(self._redact(line)[:LONGEST_LINE] for line in lines if line.strip())
            if not texts:
                return
            pages.lines(texts)
            self.on_event(Lines(stage.name, texts))
            if time.monotonic() - reported >= PROGRESS_SECONDS and (count := read_count(texts)):
                reported = time.monotonic()
                self.on_event(StageProgress(stage.name, *count))

        request = StageRequest(
            stage.name,
            force=self.options.force,
            pull=self.options.pull,
            check_cache=not self.options.force and stage.may_be_restored,
            environment={SERVER_KEY: None},
        )
        with self.devices.taken(stage.policy.resources) as share:
            request = replace(request, environment=request.environment | share)
            outcome = self.runner.run(request, take, stage.policy.timeout_seconds)
        if outcome.result == "unchanged" and all(reason.kind == "output" for reason in stage.reasons):
            outcome = replace(outcome, result="restored")
        return replace(outcome, message=self._redact(outcome.message))


def run_result(run: Attempts) -> RunResult:
    """How a run ended, from how its stages did."""
    if run.cancelled:
        return RunResult("Cancelled", "stopped; the same command continues")
    failed = [outcome for outcome in run.outcomes.values() if outcome.result == "failed"]
    if failed:
        return RunResult("Failed", "; ".join(f"{outcome.name}: {outcome.message}" for outcome in failed))
    refused = [outcome for outcome in run.outcomes.values() if outcome.result == "refused"]
    if refused:
        return RunResult("Refused", refused[0].message)
    return RunResult("Completed", f"{len(run.plan.to_do)} of {len(run.plan.stages)} stages were not up to date")


def read_count(lines: Sequence[str]) -> tuple[int, int] | None:
    """The done and the total of the last line with `120/500` or `120 of 500`; None where there is none."""
    for found in filter(None, map(_COUNT.search, reversed(lines))):
        done, total = (int(number.replace(",", "")) for number in found.groups())
        if 0 < total >= done:
            return done, total
    return None
