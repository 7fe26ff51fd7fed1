"""The pipeline as a Prefect flow: a task for each stage that is not up to date, chained as dvc.yaml says.

`parrotflow run` and deployments both come through `run_stages`. DVC is the cache.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prefect.artifacts import acreate_markdown_artifact

from flows.plan.graph import PlannedStage, remember_seconds
from flows.run.chain import Chain, Log, Node
from flows.run.dvc_child import SINGLE
from flows.run.dvc_process import run_repro
from flows.run.flow_run import END_SECONDS
from flows.run.outcome import RunResult, StageOutcome, run_result
from flows.run.programs import redactor, shown_lines
from flows.run.report import outcome_page
from stages.runtime.errors import whole_number

if TYPE_CHECKING:
    from flows.run.one_run import PlannedRun

STAGES_AT_ONCE = "PARROTFLOW_STAGES_AT_ONCE"


async def run_stages(run: "PlannedRun") -> RunResult:
    """Run the stages of a plan as tasks of the calling flow run, then write its page."""
    chain = Chain([*stage_nodes(run)], run.terminal, at_once=whole_number(STAGES_AT_ONCE) or 2)
    await chain.run()
    for outcome in chain.outcomes.values():
        if outcome.result == "ran":
            remember_seconds(outcome.name, outcome.seconds)
    run.terminal.summary(run.plan, chain.outcomes)
    with suppress(Exception):  # a server that is away costs the page, not the run
        async with asyncio.timeout(END_SECONDS):
            page = outcome_page(run.plan, chain.outcomes)
            await acreate_markdown_artifact(page, key="pipeline", description="What ran, and why")
    done = f"{len(run.plan.to_do)} of {len(run.plan.stages)} stages were not up to date"
    return run_result(chain.outcomes, chain.stopped, done)


def stage_nodes(run: "PlannedRun") -> Iterator[Node]:
    """The stages that are not up to date, each as `dvc repro --single-item STAGE`."""
    redact, environment = redactor(), run.environment
    options = [SINGLE, *["--force"] * run.options.force]
    pull = run.options.pull and not run.options.force

    async def work(stage: PlannedStage, log: Log) -> StageOutcome:
        def take(lines: list[str]) -> None:
            if texts := shown_lines(lines, redact):
                log(texts)
                run.terminal.lines(stage.name, texts)

        outcome = await run_repro(stage.name, [stage.name], Path(), environment, take, options=options, pull=pull)
        if outcome.result == "unchanged" and all(reason.kind == "output" for reason in stage.reasons):
            outcome = replace(outcome, result="restored")
        return replace(outcome, message=redact(outcome.message))

    for stage in run.plan.to_do:
        policy = stage.policy
        yield Node(
            stage.name,
            partial(work, stage),
            stage.upstream,
            policy.resources,
            policy.retries,
            policy.retry_delay_seconds,
            stage.why,
        )
