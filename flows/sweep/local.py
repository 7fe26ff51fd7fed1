"""Run the cells of a sweep on this machine: a job is `dvc repro` in a clone, with its share of the GPUs or cores."""

from collections.abc import Mapping
from dataclasses import replace

from flows.experiments.runs import Run
from flows.run.chain import Chain, Log
from flows.run.dvc_process import start_fork_server
from flows.run.outcome import StageOutcome
from flows.run.server import Server
from flows.run.terminal import NodeRow, Terminal
from flows.sweep import clone
from flows.sweep.batch import Batch
from flows.sweep.jobs import Job, jobs_of, nodes_of, repro_in_clone, run_jobs
from flows.sweep.shares import cores, gpus, shares_of
from stages.runtime.errors import EXIT_UNAVAILABLE, UserError
from stages.runtime.section import PARAMS_FILE, read_params_file


def run_cells_here(
    batch: Batch,
    head: str,
    keys: Mapping[str, Mapping[str, str]],
    environment: dict[str, str],
    server: Server,
    at_once: int,
) -> dict[str, Run]:
    """Run cells at the commit `head`, and record each as soon as it has ended; their runs, by their ids.

    `keys` are those of the cells' stages, `environment` is what stages get. `at_once` cells run at a time, each with
    its share of the GPUs, or else of the cores. The clone of a failed one stays.

    Raises UserError before anything runs, StoppedError after Ctrl-C or a cancellation.
    """
    start_fork_server()
    cells = {cell.id: cell for cell in batch.cells}
    cache, folders = clone.project_cache(), {}
    for number, (id_, cell) in enumerate(cells.items(), start=1):
        print(f"{batch.title}: clone {number} of {len(cells)}: {cell.label}", flush=True)
        folders[id_] = clone.prepare_clone(cell, head, clone.CLONES / id_, cache=cache)
    jobs, runs = jobs_of(batch, keys, head), dict[str, Run]()
    terminal = Terminal([NodeRow(job.name(cells)) for job in jobs])
    shares = shares_of(at_once, gpus(), cores())

    async def work(job: Job, log: Log) -> StageOutcome:
        share = shares.pop()
        try:
            folder = folders[job.cells[0]]
            outcome = await repro_in_clone(job.name(cells), job.targets, folder, environment | share, terminal, log)
        finally:
            shares.append(share)
        return record(job, outcome)

    def record(job: Job, outcome: StageOutcome) -> StageOutcome:
        """Make a DVC experiment of a cell that has ended well, record it and remove its clone."""
        if job.shared:
            return outcome
        (id_,), commit, texts = job.cells, "", dict[str, str]()
        cell, folder = cells[id_], folders[id_]
        if outcome.good:
            texts = clone.read_texts(folder, batch.files)
            try:
                commit = clone.save_experiment(folder, cell.name, batch.targets)
            except UserError as error:
                outcome = replace(outcome, result="failed", message=str(error), exit_code=EXIT_UNAVAILABLE)
        params = read_params_file(folder / PARAMS_FILE)
        runs[id_] = batch.end(cell, outcome, head, params, keys[id_], commit=commit, texts=texts)
        if outcome.good:
            clone.discard(clone.CLONES.absolute() / id_)
            terminal.lines(outcome.name, [f"finished as {cell.name} ({len(runs)} of {len(cells)})"])
        return outcome

    nodes = nodes_of(
        jobs, cells, work, record, folders, retries=batch.retries, retry_delay_seconds=batch.retry_delay_seconds
    )
    run_jobs(batch, Chain(nodes, terminal, at_once, keep_going=True), server)
    return runs
