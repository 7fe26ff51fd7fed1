"""A chain of nodes as tasks of the calling Prefect flow run: the stages of a run, or the jobs of a sweep.

A task begins once the tasks before it have ended; the work of its node begins only if they succeeded. Prefect shows
every state, stores the lines, and waits before a retry. All tasks are async, in one event loop. A signal cancels all
tasks, including the waiting ones, and a cancelled task ends its `dvc` command.
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
    """Return the outcome "refused" for a node after a refused one; None if `upstream` ended in another way."""
    if upstream is None or upstream.result != "refused":
        return None
    return StageOutcome(name, "refused", message="a stage that it depends on was refused")


@dataclass(frozen=True)
class Node:
    """Work that starts once the nodes that it depends on have succeeded."""

    name: str
    work: Callable[[Log], Awaitable[StageOutcome]]
    upstream: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    """Resources that only one node may use at a time."""
    retries: int = 0
    retry_delay_seconds: float = 0.0
    blocked: Callable[[StageOutcome | None, str], StageOutcome | None] = refused_with
    """Maps the outcome of an unsuccessful upstream node to this node's outcome; None: the node does not start."""


@dataclass
class Chain:
    """Nodes, upstreams first, and the outcomes so far."""

    nodes: Sequence[Node]
    terminal: "Terminal"
    at_once: int
    """The maximum number of nodes that work at the same time."""
    keep_going: bool = False
    """True if more nodes start after one has failed for good."""
    outcomes: dict[str, StageOutcome] = field(default_factory=dict)
    """The outcome of each node's latest attempt; nodes that did not start are missing."""
    stopped: bool = False
    """True after a signal."""

    @property
    def given_up(self) -> bool:
        """True if no more nodes start."""
        ends = self.outcomes.values()
        failed = any(outcome.result == "failed" and outcome.next_attempt_seconds is None for outcome in ends)
        return self.stopped or (failed and not self.keep_going)

    async def run(self) -> None:
        """Run the nodes as tasks of the calling flow run. Raises an exception of this program, not of a node."""
        self._slots = asyncio.Semaphore(self.at_once)
        self._resources: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        faults: list[Exception] = []

        def is_retried(attempted: "Task[..., Any]", of_task: TaskRun, state: State[Any]) -> bool:
            outcome = self.outcomes.get(attempted.name)
            return outcome is not None and outcome.next_attempt_seconds is not None

        @task(cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=is_retried)
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
            node_task = attempt.with_options(
                name=node.name,
                task_run_name=node.name,
                retries=node.retries,
                retry_delay_seconds=node.retry_delay_seconds,
            )
            ends = completed_states([upstream.result() for upstream in before])
            # Prefect's types declare a `State`, but an async task returns a coroutine.
            state = node_task(node.name, wait_for=ends, return_state=True)
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
        """Wait for a node's resources and a slot, then do its work, for the `number`-th time."""
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
                # The node was waiting for its next attempt.
                self.outcomes[node.name] = replace(self.outcomes[node.name], next_attempt_seconds=None)
                return outcome_state(self.outcomes[node.name])
            self.terminal.started(node.name, number)
            try:
                outcome = await node.work(log)
            except UserError as error:
                outcome = StageOutcome(node.name, "failed", message=str(error))
            if outcome.transient and number <= node.retries and not self.given_up:
                outcome = replace(outcome, next_attempt_seconds=node.retry_delay_seconds)
            # Noted before the slot is free: after a failure the next node must not start.
            return outcome_state(self._noted(outcome))

    def _noted(self, outcome: StageOutcome) -> StageOutcome:
        self.outcomes[outcome.name] = outcome
        self.terminal.ended(outcome)
        return outcome


def completed_states(ends: Sequence[State[Any]]) -> list[State[Any]]:
    """Return completed states for these ends, so that Prefect draws the graph's edges but starts the next task anyway.

    Prefect leaves a task after a failed one pending, and its page draws that task up to the present day, so the rest
    becomes too small to see.
    """
    return [Completed(data=end.name, state_details=end.state_details) for end in ends]


def outcome_state(outcome: StageOutcome) -> State[Any]:
    """Return a node's outcome as a Prefect state."""
    message = outcome.message or f"{outcome.seconds:.1f} s"
    match outcome.result:
        case "failed":
            return Failed(message=message)
        case "stopped":
            return Cancelled(message=message)
        case result:
            return Completed(name=result.capitalize(), message=message)
