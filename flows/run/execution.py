"""The stages of one run as they are executed, without Prefect: who runs, who waits for room, what each one says.

A stage that hangs on no other begins before Prefect's server is up, which takes seconds; its task in Prefect then reads
what it said from the first line on.
"""

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace

from flows.dvc.cache import drop_damaged
from flows.plan.graph import Plan, PlannedStage
from flows.plan.history import remember_seconds
from flows.project.accept import drop_entries
from flows.run.process import Children, StageOutcome, repro_arguments
from flows.run.slots import slots_of_this_machine
from flows.run.warm_dvc import WarmDvc
from flows.show.terminal import Terminal, is_of_the_stage


class Run:
    """What the stages of one run share. No data class: Prefect would look into it for futures, and copy it."""

    def __init__(self, plan: Plan, *, force: bool, pull: bool, keep_going: bool) -> None:
        self.plan = plan
        self.stages = {stage.name: stage for stage in plan}
        self.force, self.pull, self.keep_going = force, pull, keep_going
        self.slots = slots_of_this_machine()
        self.terminal = Terminal(plan)
        self.children = Children()
        self.warm_dvc = WarmDvc()
        self.outcomes: dict[str, StageOutcome] = {}
        self.failed = threading.Event()
        self._begun: dict[str, Execution] = {}
        self._unstarted = {stage.name for stage in plan.to_do}
        self._spoken = threading.Event()
        self._lock = threading.Lock()

    @property
    def given_up(self) -> bool:
        """Whether no further stage shall start."""
        return self.children.stopping or (self.failed.is_set() and not self.keep_going)

    def begin_what_can(self) -> None:
        """Begin the stages that wait for nothing and nobody."""
        waiting = {stage.name for stage in self.plan.to_do}
        for stage in self.plan.to_do:
            if not waiting & set(stage.upstream) and not stage.policy.gate and not stage.policy.approval:
                self.execution(stage.name)

    def execution(self, name: str) -> "Execution":
        """The stage's execution, begun now unless it has been."""
        with self._lock:
            if name not in self._begun:
                self._begun[name] = Execution(self, self.stages[name])
            return self._begun[name]

    def start_dvc(self, name: str) -> "subprocess.Popen[bytes]":
        """Start the child that brings a stage up to date."""
        process = self.warm_dvc.start(repro_arguments(name, force=self.force, pull=self.pull))
        self._unstarted.discard(name)
        return process

    def has_spoken(self) -> None:
        """A stage's command has begun: time to warm DVC for the next ones, and for all else that takes a core."""
        self._spoken.set()
        if not self.given_up:
            self.warm_dvc.keep_ready(min(len(self._unstarted), self.slots.stages_at_once))

    def wait_for_first_words(self, seconds: float) -> None:
        """Leave the cores to the stages that have begun until one of them speaks, or so long."""
        if self._begun:
            self._spoken.wait(seconds)

    def forget(self, name: str) -> None:
        """Let the next attempt begin anew."""
        with self._lock:
            del self._begun[name]

    def end(self, outcome: StageOutcome) -> None:
        """Enter how a stage ended for good."""
        with self._lock:
            self.outcomes[outcome.name] = outcome
            if outcome.result == "ran":
                remember_seconds(outcome.name, outcome.seconds)
                drop_entries(outcome.name)
        self.terminal.ended(outcome)


class Execution:
    """One attempt at one stage, in a thread of its own."""

    def __init__(self, run: Run, stage: PlannedStage) -> None:
        self.run, self.stage = run, stage
        self.outcome: StageOutcome | None = None
        """How it ended; None while it goes on, and where it was given up before it began."""
        self._lines: list[str] = []
        self._over = False
        self._said = threading.Condition()
        threading.Thread(target=self._execute, name=stage.name).start()

    def lines(self) -> Iterator[str]:
        """What the stage says, from its first line to its end."""
        number = 0
        while True:
            with self._said:
                while number == len(self._lines) and not self._over:
                    self._said.wait()
                if number == len(self._lines):
                    return
                line = self._lines[number]
            number += 1
            yield line

    def _execute(self) -> None:
        try:
            with self.run.slots.taken(self.stage.policy.resources, lambda: self.run.given_up) as free:
                if free:
                    self.outcome = self._run_child()
        finally:
            # A mistake here: no further stage. One that may pass is the task's to decide about.
            if self.outcome is None or (self.outcome.result in ("failed", "stopped") and not self.outcome.passing):
                self.run.failed.set()
            with self._said:
                self._over = True
                self._said.notify_all()

    def _run_child(self) -> StageOutcome:
        name = self.stage.name
        self.run.terminal.started(name)
        if not self.run.force and self.stage.may_be_restored and (damaged := drop_damaged(name)):
            self._say(f"damaged in DVC's cache, dropped there: {', '.join(damaged)}")
        outcome = self.run.children.run(
            name, lambda: self.run.start_dvc(name), self._say, timeout_seconds=self.stage.policy.timeout_seconds
        )
        if outcome.result == "unchanged" and all(reason.kind == "output" for reason in self.stage.reasons):
            return replace(outcome, result="restored")
        return outcome

    def _say(self, line: str) -> None:
        self.run.has_spoken()
        if is_of_the_stage(line):
            self.run.terminal.line(self.stage.name, line)
            with self._said:
                self._lines.append(line)
                self._said.notify_all()
