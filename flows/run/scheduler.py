"""The scheduler: which stage runs when, and what happens when it fails. Prefect has no part in it.

Each stage of the plan that is not clean goes through these states:

    waiting   until every stage that it depends on ended well
    judging   its gate and its approval, if it has any; once, before its first attempt
    ready     until a slot and its resources are free, or until the delay before a retry has passed
    running
    ended     ran, unchanged, restored, refused, failed or stopped; StageOutcome

One thread, the caller's, decides all of that. A stage that is judged or runs has a thread of its own, which only sends
a message when it is done. A failure of a kind that may go away (`StageOutcome.transient`) is tried again as often as
the stage's policy says. After any other failure no further stage starts, unless `keep_going`. Ctrl-C, SIGTERM and a
cancellation in Prefect's pages (which arrives as SIGTERM) end the stages that run.
"""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Literal

from flows.run import gate
from flows.run.process import StageOutcome, StageRunner
from flows.run.programs import running_sidecar
from flows.run.record import (
    GOOD,
    LONGEST_LINE,
    ApprovalAsked,
    Artifact,
    Event,
    Lines,
    Progress,
    StageEnded,
    StageStarted,
    redactor,
)
from flows.run.request import Request
from flows.run.slots import slots_of_this_machine
from stages.runtime.entry import UserError

if TYPE_CHECKING:
    from flows.plan.graph import Plan, PlannedStage

PROGRESS_SECONDS = 5.0
"""Between two reports of a stage's progress."""

WAIT_SECONDS = 0.5
"""Seconds between two checks for a signal."""

_COUNT = re.compile(r"(\d[\d,]*)\s*(?:/|of)\s*(\d[\d,]*)")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a user asks of a run."""

    targets: tuple[str, ...] = ()
    """Stages with what they need; all stages when none is named."""
    force: bool = False
    """Run them even if they are up to date."""
    downstream: bool = False
    """Run the targets and everything that depends on them, instead of what they need."""
    keep_going: bool = False
    """After a failure, keep running stages that do not depend on it."""
    pull: bool = False
    """Fetch missing results from the DVC remote."""
    wait: bool = False
    """Wait for another run in this folder instead of refusing."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A stage's gate and approval have been judged."""

    stage: str
    refusal: str = ""
    failure: str = ""
    """Why it could not be judged."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt at a stage has ended."""

    outcome: StageOutcome


@dataclass(frozen=True, slots=True)
class Crashed:
    """A thread of this program failed; a mistake in it, not in a stage."""

    error: BaseException


Message = Judged | Ended | Crashed | Literal["stop"]


@dataclass
class Progressing:
    """Where a stage is, for the scheduler's thread alone."""

    stage: "PlannedStage"
    state: Literal["waiting", "judging", "ready", "running", "ended"] = "waiting"
    attempts: int = 0
    not_before: float = 0.0
    """Of a stage that is ready: when its next attempt may start, by `time.monotonic()`."""
    failure: StageOutcome | None = None
    """Of the last attempt, where another one is to come."""


class Scheduler:
    """Brings the stages of a plan up to date."""

    def __init__(
        self,
        plan: "Plan",
        options: RunOptions,
        runner: StageRunner,
        *,
        replan: Callable[[str], "PlannedStage"],
        on_event: Callable[[Event], None],
        approve: Callable[[str, Callable[[], bool]], str],
    ) -> None:
        """`replan(stage)` plans a stage anew, once the stages before it have ended. `approve(stage, given_up)` asks a
        person; it returns why the stage may not run, or nothing for a yes.
        """
        self.options, self.runner, self.replan, self.approve = options, runner, replan, approve
        self.on_event = on_event
        self.stages = {stage.name: Progressing(stage) for stage in plan.to_do}
        self.outcomes: dict[str, StageOutcome] = {}
        self.slots = slots_of_this_machine()
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self.secrets = secrets_of(plan)
        self.redact = redactor(self.secrets)

    @property
    def cancelled(self) -> bool:
        """Whether the run was stopped."""
        return self.runner.stopping.is_set()

    @property
    def given_up(self) -> bool:
        """Whether no further stage is to start."""
        failed = any(outcome.result == "failed" for outcome in self.outcomes.values())
        return self.cancelled or (failed and not self.options.keep_going)

    def run(self) -> dict[str, StageOutcome]:
        """Run until nothing runs and nothing more can start; the outcomes of the stages that were begun."""
        with stopped_by_signals(lambda: self.messages.put("stop")):
            try:
                while True:
                    self._start_what_can()
                    retry_in_seconds = self._next_retry()
                    if not self._in("judging", "running") and not retry_in_seconds:
                        return self.outcomes
                    # A signal that arrives just before the wait does not end it, so no wait is long.
                    with contextlib.suppress(Empty):
                        self._handle(self.messages.get(timeout=min(retry_in_seconds or WAIT_SECONDS, WAIT_SECONDS)))
            except BaseException:
                self.runner.stop()
                raise

    def _start_what_can(self) -> None:
        """Bring each stage as far as it can get now. Upstreams come first in the plan, so one pass is enough."""
        for progress in self.stages.values():
            stage = progress.stage
            if progress.state == "waiting" and not self.given_up:
                upstream = [self.outcomes[name].result for name in stage.upstream if name in self.outcomes]
                if "refused" in upstream:
                    self._end(StageOutcome(stage.name, "refused", message="a stage that it depends on was refused"))
                elif all(name not in self.stages or self._is_good(name) for name in stage.upstream):
                    guarded = stage.policy.gate or stage.policy.approval
                    progress.state = "judging" if guarded else "ready"
                    if guarded:
                        self._in_thread(partial(self._judge, stage))
            if progress.state == "ready" and self.given_up:
                if progress.failure:
                    self._end(progress.failure)
            elif progress.state == "ready" and time.monotonic() >= progress.not_before:
                self._start_attempt(progress)

    def _start_attempt(self, progress: Progressing) -> None:
        if self.slots.take(progress.stage.policy.resources):
            progress.state = "running"
            progress.attempts += 1
            self._emit(StageStarted(stage=progress.stage.name, attempt=progress.attempts))
            self._in_thread(partial(self._attempt, progress.stage))

    def _handle(self, message: Message) -> None:
        """React to what has happened."""
        match message:
            case "stop":
                self.runner.stop()
            case Judged(name, refusal, failure):
                if refusal or failure:
                    self._end(StageOutcome(name, "failed" if failure else "refused", message=failure or refusal))
                else:
                    self.stages[name].state = "ready"
            case Ended(outcome):
                progress = self.stages[outcome.name]
                policy = progress.stage.policy
                self.slots.give_back(policy.resources)
                if outcome.transient and progress.attempts <= policy.retries and not self.given_up:
                    progress.state, progress.failure = "ready", outcome
                    progress.not_before = time.monotonic() + policy.retry_delay_seconds
                    self._report_end(outcome, policy.retry_delay_seconds)
                else:
                    self._end(outcome)
            case Crashed(error):
                raise error

    def _judge(self, stage: "PlannedStage") -> Judged:
        try:
            return Judged(stage.name, refusal=self._refusal(stage))
        except UserError as error:
            return Judged(stage.name, failure=str(error))

    def _refusal(self, stage: "PlannedStage") -> str:
        """Why a stage may not run: the table of its gate, or that a person said no. Empty where it may.

        A stage that turns out to be up to date is not judged, and one whose result is only restored needs no approval.
        """
        planned = stage
        if stage.state != "run" or any(name in self.stages for name in stage.upstream):
            # The stages before it have ended, so now the plan is exact.
            planned = self.replan(stage.name)
        state = "run" if self.options.force else planned.state
        if state == "clean":
            return ""
        verdicts = gate.judge(stage.policy.gate)
        table = gate.table(verdicts)
        if verdicts:
            self._emit(
                Artifact(key=f"gate-{stage.name}", kind="markdown", data=table, description="Gate", stage=stage.name)
            )
        if not all(verdict.holds for verdict in verdicts):
            return table
        if stage.policy.approval and state == "run":
            self._emit(ApprovalAsked(stage=stage.name))
            return self.approve(stage.name, lambda: self.given_up)
        return ""

    def _attempt(self, stage: "PlannedStage") -> Ended:
        """One attempt at a stage, from its start to its end."""
        reported = time.monotonic()

        def on_lines(lines: list[str]) -> None:
            nonlocal reported
            texts = tuple(self.redact(line)[:LONGEST_LINE] for line in lines if line.strip())
            if not texts:
                return
            self._emit(Lines(stage=stage.name, texts=texts))
            if time.monotonic() - reported >= PROGRESS_SECONDS and (count := last_count(texts)):
                reported = time.monotonic()
                self._emit(Progress(stage=stage.name, done=count[0], total=count[1]))

        request = Request(
            stage.name,
            force=self.options.force,
            pull=self.options.pull,
            check_cache=not self.options.force and stage.may_be_restored,
            environment={
                name: os.environ[name] if name in stage.policy.secrets else None for name in sorted(self.secrets)
            },
        )
        with running_sidecar(stage.policy.sidecar, self.secrets, on_lines):
            outcome = self.runner.run(request, on_lines, stage.policy.timeout_seconds)
        if outcome.result == "unchanged" and all(reason.kind == "output" for reason in stage.reasons):
            outcome = replace(outcome, result="restored")
        return Ended(replace(outcome, message=self.redact(outcome.message)))

    def _end(self, outcome: StageOutcome) -> None:
        """A stage has ended for good."""
        self.stages[outcome.name].state = "ended"
        self.outcomes[outcome.name] = outcome
        self._report_end(outcome)

    def _report_end(self, outcome: StageOutcome, retry_in_seconds: float | None = None) -> None:
        self._emit(
            StageEnded(
                stage=outcome.name,
                result=outcome.result,
                seconds=round(outcome.seconds, 3),
                message=outcome.message,
                exit_code=outcome.exit_code,
                retry_in_seconds=retry_in_seconds,
            )
        )

    def _in(self, *states: str) -> bool:
        return any(progress.state in states for progress in self.stages.values())

    def _is_good(self, name: str) -> bool:
        return name in self.outcomes and self.outcomes[name].result in GOOD

    def _next_retry(self) -> float | None:
        """Seconds until a stage may be tried again; None where none waits for that."""
        waiting = [item.not_before for item in self.stages.values() if item.state == "ready" and item.failure]
        return max(0.01, min(waiting) - time.monotonic()) if waiting else None

    def _emit(self, event: Event) -> None:
        self.on_event(event)

    def _in_thread(self, work: Callable[[], Message]) -> None:
        def send() -> None:
            try:
                self.messages.put(work())
            except BaseException as error:
                self.messages.put(Crashed(error))

        threading.Thread(target=send).start()


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended."""

    state: Literal["Completed", "Refused", "Failed", "Cancelled"]
    """Refused, by a gate or a person, is no failure."""
    message: str


def run_result(plan: "Plan", outcomes: dict[str, StageOutcome], *, cancelled: bool) -> RunResult:
    """How a run ended, from how its stages did."""
    if cancelled:
        return RunResult("Cancelled", "stopped; the same command continues")
    failed = [outcome for outcome in outcomes.values() if outcome.result == "failed"]
    if failed:
        return RunResult("Failed", "; ".join(f"{outcome.name}: {outcome.message}" for outcome in failed))
    refused = [outcome for outcome in outcomes.values() if outcome.result == "refused"]
    if refused:
        return RunResult("Refused", refused[0].message)
    return RunResult("Completed", f"{len(plan.to_do)} of {len(plan.stages)} stages were not up to date")


def secrets_of(plan: "Plan") -> set[str]:
    """The variables of the environment that some stage of the repository names as a secret."""
    return {name for name in plan.secrets if name in os.environ}


def last_count(lines: Sequence[str]) -> tuple[int, int] | None:
    """The count of the last line that has one."""
    return next((count for line in reversed(lines) if (count := read_count(line))), None)


def read_count(line: str) -> tuple[int, int] | None:
    """The done and the total of a line with `120/500` or `120 of 500`; None where there is none."""
    found = _COUNT.search(line)
    if not found:
        return None
    done, total = (int(number.replace(",", "")) for number in found.groups())
    return (done, total) if total > 0 and done <= total else None


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While within, Ctrl-C and SIGTERM call `stop`. In other threads than the main one signals stay as they are.

    After a SIGTERM another one changes nothing, also later: a run that Prefect started is told of one cancellation by
    its worker and by its recorder, and the second must not kill it while it says how it has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            before[signal.SIGTERM] = lambda number, frame: None
        stop()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
