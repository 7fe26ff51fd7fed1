"""One run: lock, repairs, plan, checks; then each stage's part of it. Who chains the stages is not known here.

A run has one `Run`. `attempt` is called once every stage before it has ended well: its resources and a slot are waited
for, then the stage runs as a process. After a failure no further stage starts.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace

from flows.dvc_repo import low_space, repair_after_kill
from flows.plan.changes import MISSING
from flows.plan.graph import Plan, PlannedStage, make_plan, remember_seconds
from flows.run.locks import run_lock
from flows.run.outcome import RunOptions, RunResult, StageOutcome, named
from flows.run.programs import checks, redactor, stage_environment
from flows.run.stage import import_dvc, run_stage
from flows.run.terminal import Terminal, plan_table
from stages.runtime.errors import UserError, whole_number
from stages.runtime.preflight import check_before_run, check_params

STAGES_AT_ONCE = "PARROTFLOW_STAGES_AT_ONCE"

LONGEST_LINE = 10_000


@dataclass
class Run:
    """What the stages of one run share."""

    plan: Plan
    options: RunOptions
    terminal: Terminal
    outcomes: dict[str, StageOutcome] = field(default_factory=dict)
    """Stage -> the outcome of its latest attempt, for stages that were started or refused."""
    retrying: set[str] = field(default_factory=set)
    """Stages that failed and are to be tried again."""
    stopped: bool = False
    """Whether a signal has ended it."""

    def __post_init__(self) -> None:
        self._redact = redactor()
        self._slots = asyncio.Semaphore(whole_number(STAGES_AT_ONCE) or 2)
        self._resources: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._environment = stage_environment(stage.name for stage in self.plan.to_do)

    @property
    def given_up(self) -> bool:
        """Whether no further stage is to start."""
        failed = (one.name for one in self.outcomes.values() if one.result == "failed")
        return self.stopped or any(name not in self.retrying for name in failed)

    async def attempt(self, stage: PlannedStage, number: int, log: Callable[[Sequence[str]], None]) -> StageOutcome:
        """The `number`-th attempt at a stage; `log` gets its lines, with its secrets hidden."""
        if any(name in self.outcomes and self.outcomes[name].result == "refused" for name in stage.upstream):
            return self._noted(StageOutcome(stage.name, "refused", message="a stage that it depends on was refused"))
        async with AsyncExitStack() as held:
            for resource in sorted(set(stage.policy.resources)):
                await held.enter_async_context(self._resources[resource])
            await held.enter_async_context(self._slots)
            if self.given_up:
                self.retrying.discard(stage.name)
                return self.outcomes.get(stage.name, StageOutcome(stage.name, "stopped", message="not started"))
            self.terminal.started(stage.name, number)
            try:
                outcome = await self._run(stage, log)
            except UserError as error:
                outcome = StageOutcome(stage.name, "failed", message=str(error))
            if outcome.transient and number <= stage.policy.retries and not self.given_up:
                self.retrying.add(stage.name)
            else:
                self.retrying.discard(stage.name)
            # Noted before the slot is free: the next stage may be one that must not start.
            return self._noted(outcome, stage.policy.retry_delay_seconds)

    def _noted(self, outcome: StageOutcome, delay_seconds: float = 0.0) -> StageOutcome:
        self.outcomes[outcome.name] = outcome
        self.terminal.ended(outcome, delay_seconds if outcome.name in self.retrying else None)
        return outcome

    async def _run(self, stage: PlannedStage, log: Callable[[Sequence[str]], None]) -> StageOutcome:
        def take(lines: list[str]) -> None:
            if texts := [self._redact(line)[:LONGEST_LINE] for line in lines if line.strip()]:
                log(texts)
                self.terminal.lines(stage.name, texts)

        force, pull = self.options.force, self.options.pull and not self.options.force
        outcome = await run_stage(stage.name, self._environment, take, options=["--force"] * force, pull=pull)
        if outcome.result == "unchanged" and all(reason.kind == "output" for reason in stage.reasons):
            outcome = replace(outcome, result="restored")
        return replace(outcome, message=self._redact(outcome.message))

    def finish(self) -> None:
        """Say what came of the stages, and keep how long they took."""
        for outcome in self.outcomes.values():
            if outcome.result == "ran":
                remember_seconds(outcome.name, outcome.seconds)
        self.terminal.stop()
        self.terminal.summary(self.outcomes)

    def result(self) -> RunResult:
        """How the run ended, from how its stages did."""
        if self.stopped:
            return RunResult("Cancelled", "stopped; the same command continues")
        failed = [outcome for outcome in self.outcomes.values() if outcome.result == "failed"]
        if failed:
            return RunResult("Failed", "; ".join(named(outcome.name, outcome.message) for outcome in failed))
        refused = [outcome for outcome in self.outcomes.values() if outcome.result == "refused"]
        if refused:
            return RunResult("Refused", refused[0].message)
        return RunResult("Completed", f"{len(self.plan.to_do)} of {len(self.plan.stages)} stages were not up to date")


@contextmanager
def locked_folder(options: RunOptions, *, name: str = "`parrotflow run`") -> Iterator[None]:
    """Hold the folder's lock while within; faults of the parameters are refused, and what a kill left is repaired."""
    with run_lock(name, wait=options.wait):
        check_params()
        for line in repair_after_kill():
            print(line, flush=True)
        yield


def planned_run(options: RunOptions) -> Run:
    """Plan a run, and show the plan; without anything to do, that is its end. Raises UserError."""
    plan = make_plan(options.targets, force=options.force)
    data = [stage for stage in plan if stage.name.endswith(".dvc") and not options.pull]
    if absent := [stage.name for stage in data if any(reason.new == MISSING for reason in stage.reasons)]:
        raise UserError(f"{absent[0]}: its data is not here: `parrotflow run --pull` or `dvc checkout` brings it")
    to_do = [stage.name for stage in plan.to_do]
    check_before_run(to_do)
    run = Run(plan, options, Terminal(plan))
    if not plan.to_do:
        run.finish()
        return run
    import_dvc()
    for line in [*low_space(to_do), *checks(plan, redactor(), before_run=True)]:
        print(line, flush=True)
    run.terminal.console.print(plan_table(plan), "", sep="\n")
    return run
