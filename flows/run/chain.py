"""A chain of nodes as tasks of the calling Prefect flow run: the stages of a run, or the jobs of a sweep.

A task begins once those before it have ended, and its node's work only if they ended well. Prefect shows every state,
keeps the lines, and waits before a retry. All tasks are async, in one event loop. A signal cancels them, also those
that wait, and a cancelled one ends its `dvc` command.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from prefect import Task, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import task_run
from prefect.states import Cancelled, Completed, Failed

from flows.run.outcome import StageOutcome
from flows.run.programs import stopping_on_signals
from stages.runtime.errors import UserError

if TYPE_CHECKING:
    from flows.run.terminal import Terminal

Log = Callable[[Sequence[str]], None]
"""Logs lines to the task run."""


def refused_with(upstream: StageOutcome | None, name: str) -> StageOutcome | None:
    """The outcome of a node that cannot start: refused after a refusal, else none."""
    if upstream is None or upstream.result != "refused":
        return None
    return StageOutcome(name, "refused", message="a stage that it depends on was refused")


@dataclass(frozen=True)
class Node:
    """Work that is done once the nodes it waits for have ended well."""

    name: str
    work: Callable[[Log], Awaitable[StageOutcome]]
    upstream: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    """Resources that only one node may use at a time."""
    retries: int = 0
    retry_delay_seconds: float = 0.0
    blocked: Callable[[StageOutcome | None, str], StageOutcome | None] = refused_with
    """Its outcome if a node before it has not ended well, whose outcome is given; None if it just does not start."""


@dataclass
class Chain:
    """Nodes, upstreams first, and how they have ended so far."""

    nodes: Sequence[Node]
    terminal: "Terminal"
    at_once: int
    """How many nodes may work at the same time."""
    keep_going: bool = False
    """Whether further nodes start after one has failed for good."""
    outcomes: dict[str, StageOutcome] = field(default_factory=dict)
    """Node -> the outcome of its latest attempt; nodes that did not start are missing."""
    stopped: bool = False
    """Whether a signal has ended it."""

    @property
    def given_up(self) -> bool:
        """Whether no further node is to start."""
        failed = [end for end in self.outcomes.values() if end.result == "failed" and end.next_attempt_seconds is None]
        return self.stopped or bool(failed and not self.keep_going)

    async def run(self) -> None:
        """Run the nodes as tasks of the calling flow run. An exception of this program, not of a node, is raised."""
        self._slots = asyncio.Semaphore(self.at_once)
        self._resources: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        faults: list[Exception] = []

        def is_tried_again(attempted: "Task[..., Any]", of_task: TaskRun, state: State[Any]) -> bool:
            end = self.outcomes.get(attempted.name)
            return end is not None and end.next_attempt_seconds is not None

        @task(cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=is_tried_again)
        async def attempt(name: str) -> Any:
            try:
                return await self._attempt(nodes[name], task_run.run_count or 1)
            except asyncio.CancelledError:
                return Cancelled(message="not started")
            except Exception as error:
                faults.append(error)
                stop()
                raise

        async def after_others(node: Node) -> State[Any]:
            before = [tasks[name] for name in node.upstream if name in tasks]
            if before:
                await asyncio.wait(before)
            own = attempt.with_options(
                name=node.name,
                task_run_name=node.name,
                retries=node.retries,
                retry_delay_seconds=node.retry_delay_seconds,
            )
            # Prefect's types say `State` of what is a coroutine here.
            state = own(node.name, wait_for=completed_states([one.result() for one in before]), return_state=True)
            return await cast("Awaitable[State[Any]]", state)

        def stop() -> None:
            if not self.stopped:
                self.stopped = True
                for waiting in tasks.values():
                    waiting.cancel()

        nodes = {node.name: node for node in self.nodes}
        tasks = {node.name: asyncio.create_task(after_others(node)) for node in self.nodes}
        with stopping_on_signals(stop), self.terminal:
            await asyncio.wait(tasks.values())
        if faults:
            raise faults[0]
        for ended in tasks.values():
            if not ended.cancelled() and (error := ended.exception()):
                raise error

    async def _attempt(self, node: Node, number: int) -> State[Any]:
        """The `number`-th attempt at a node: resources and a slot are waited for, then its work is done."""
        known = {other.name for other in self.nodes}
        ends = [self.outcomes.get(name) for name in node.upstream if name in known]
        if bad := [end for end in ends if end is None or not end.good]:
            if blocked := node.blocked(bad[0], node.name):
                return outcome_state(self._noted(blocked))
            return Cancelled(message="not started: a stage that it depends on did not succeed")
        logger = get_run_logger()

        def log(lines: Sequence[str]) -> None:
            logger.info("%s", "\n".join(lines))  # in one entry: each is a request

        async with AsyncExitStack() as held:
            for resource in sorted(set(node.resources)):
                await held.enter_async_context(self._resources[resource])
            await held.enter_async_context(self._slots)
            if self.given_up:
                if node.name not in self.outcomes:
                    return Cancelled(message="not started")
                # It waited for its next attempt.
                self.outcomes[node.name] = replace(self.outcomes[node.name], next_attempt_seconds=None)
                return outcome_state(self.outcomes[node.name])
            self.terminal.started(node.name, number)
            try:
                outcome = await node.work(log)
            except UserError as error:
                outcome = StageOutcome(node.name, "failed", message=str(error))
            if outcome.transient and number <= node.retries and not self.given_up:
                outcome = replace(outcome, next_attempt_seconds=node.retry_delay_seconds)
            # Noted before the slot is free: the next node may be one that must not start.
            return outcome_state(self._noted(outcome))

    def _noted(self, outcome: StageOutcome) -> StageOutcome:
        self.outcomes[outcome.name] = outcome
        self.terminal.ended(outcome)
        return outcome


def completed_states(ends: Sequence[State[Any]]) -> list[State[Any]]:
    """Return states that a task can wait for even if these nodes did not end well: they only carry the graph's edges.

    Prefect leaves a task after a failed one pending, and its page draws that task up to the present day, so the rest
    becomes too small to see.
    """
    return [Completed(data=end.name, state_details=end.state_details) for end in ends]


def outcome_state(outcome: StageOutcome) -> State[Any]:
    """A node's outcome as a state of Prefect."""
    message = outcome.message or f"{outcome.seconds:.1f} s"
    match outcome.result:
        case "failed":
            return Failed(message=message)
        case "stopped":
            return Cancelled(message=message)
        case result:
            return Completed(name=result.capitalize(), message=message)
