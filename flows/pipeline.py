"""The pipeline as a Prefect flow: a task for each stage that is not up to date, in the order of dvc.yaml's graph.

`parrotflow run` and deployments both call `run_stages`. DVC is the cache.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prefect.artifacts import acreate_markdown_artifact

from flows.plan.graph import PlannedStage, remember_seconds
from flows.results import log
from flows.results.pages import REPORT_PAGE, RunPage
from flows.results.recorded import in_workspace
from flows.run.chain import Chain, Log, Node
from flows.run.dvc_child import SINGLE
from flows.run.dvc_process import run_repro
from flows.run.flow_run import END_SECONDS
from flows.run.outcome import RunResult, StageOutcome, run_result
from flows.run.programs import redactor, shown_lines
from flows.run.report import outcome_page, up_to_date
from stages.runtime.errors import whole_number
from stages.runtime.preflight import recorded_stages

if TYPE_CHECKING:
    from flows.run.one_run import PlannedRun

STAGES_AT_ONCE = "PARROTFLOW_STAGES_AT_ONCE"


async def run_stages(run: "PlannedRun") -> RunResult:
    """Run the stages of a plan as tasks of the calling flow run, log the run, and write its page."""
    began, logged = time.monotonic(), log.record_begin(run.plan, run.options.note)
    page = RunPage(run.plan, logged, run.forecast, run.terminal)
    nodes, at_once = [*stage_nodes(run, page)], whole_number(STAGES_AT_ONCE) or 2
    run.terminal.say(f"The run while it works: {REPORT_PAGE}")
    chain = Chain(nodes, run.terminal, at_once, outcomes=page.outcomes)
    await chain.run()
    for outcome in chain.outcomes.values():
        if outcome.result == "ran":
            remember_seconds(outcome.name, outcome.seconds)
    done = f"{len(run.plan.to_do)} of {len(run.plan.stages)} stages were not up to date"
    result = run_result(chain.outcomes, chain.stopped, done)
    good = [stage.name for stage in up_to_date(run.plan, chain.outcomes)]
    recorded = in_workspace(recorded_stages(), good)
    page.run = log.record_end(logged, result, recorded, time.monotonic() - began)
    page.write()
    run.terminal.summary(run.plan, chain.outcomes, page.run.seconds)
    run.terminal.say(f"The run on one page: {REPORT_PAGE}")
    if chain.stopped:
        run.terminal.say(result.message)
    with suppress(Exception):  # without a server only this page is lost
        async with asyncio.timeout(END_SECONDS):
            markdown = outcome_page(run.plan, chain.outcomes)
            await acreate_markdown_artifact(markdown, key="pipeline", description="What ran, and what came out")
    return result


def run_name_and_tags(run: "PlannedRun") -> tuple[str, list[str]]:
    """A run's name in Prefect, which says what changed, as in `parrotflow log`, and its targets and note as tags."""
    note = run.options.note
    name = f"{datetime.now():%Y-%m-%d %H:%M} {log.title_of(log.first_causes(run.plan), note)}"
    return name[:200], [*run.options.targets, *([note] if note else [])]


def stage_nodes(run: "PlannedRun", page: RunPage) -> Iterator[Node]:
    """Yield a node for each stage that is not up to date; it runs `dvc repro --single-item STAGE`."""
    redact, environment = redactor(), run.environment
    options = [SINGLE, "--force"] if run.options.force else [SINGLE]
    pull = run.options.pull and not run.options.force

    async def work(stage: PlannedStage, log: Log) -> StageOutcome:
        renewals = [asyncio.create_task(asyncio.to_thread(page.write))]

        def take(lines: list[str]) -> None:
            if texts := shown_lines(lines, redact):
                log(texts)
                run.terminal.lines(stage.name, texts)
                run.terminal.progress[stage.name] = texts[-1]
                run.terminal.sparklines[stage.name] = page.sparkline(stage)
                if page.is_outdated:
                    renewals.append(asyncio.create_task(asyncio.to_thread(page.write)))

        outcome = await run_repro(stage.name, [stage.name], Path(), environment, take, options=options, pull=pull)
        if outcome.result == "unchanged" and all(reason.kind == "output" for reason in stage.reasons):
            outcome = replace(outcome, result="restored")
        await asyncio.gather(*renewals)
        return replace(outcome, message=redact(outcome.message))

    for stage in run.plan.to_do:
        policy = stage.policy
        how = (policy.resources, policy.retries, policy.retry_delay_seconds)
        yield Node(stage.name, partial(work, stage), stage.upstream, *how)
