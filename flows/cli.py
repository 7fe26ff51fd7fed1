"""The command line: `COMMANDS` lists what `parrotflow --help` shows. Heavy modules are imported where they are used."""

import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts
from pydantic import TypeAdapter

from flows.environment import enter_project, prepare_environment
from flows.reproduce import ReproduceOptions
from flows.run.outcome import RunOptions, stage_names
from stages.runtime.errors import EXIT_INTERRUPTED, UserError, private_state_dir
from stages.runtime.stage import run_stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flows.experiments.record import Run
    from flows.sweep.jobs import Batch

AsJson = Annotated[bool, cyclopts.Parameter(name="--json", help="End with one line of JSON, for other programs.")]
"""The option of commands that return facts; `run_command_line` prints them."""


def words_of_params(_: object) -> list[str]:
    """What the shell completes a word of `params` with: GROUP=CHOICE, and the dotted keys."""
    from flows.project.compose import preset_groups
    from stages.runtime.section import flatten, read_params_file

    choices = [f"{group}={choice}" for group, names in preset_groups().items() for choice in names]
    return [*choices, *(f"{key}=" for key in flatten(read_params_file()))]


ExperimentName = Annotated[
    str, cyclopts.Parameter(completer=lambda _: sorted(path.stem for path in Path("experiments").glob("*.yaml")))
]


def run(
    options: Annotated[RunOptions, cyclopts.Parameter(name="*", show_default=False)] = RunOptions(),  # noqa: B008
    *,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Run the stages that are not up to date: all, or the targets and what they depend on."""
    from flows.dvc_repo import fetch_run_cache
    from flows.run.one_run import locked_folder, planned_run
    from flows.run.report import run_facts
    from flows.run.server import start_server

    with locked_folder(options):
        if options.pull:
            fetch_run_cache()
        server = start_server()
        planned = planned_run(options)
        if not planned.plan.to_do:
            server.stop(seconds=0)
            return run_facts(planned.plan, {})
        server.reach_directly()
        # They import Prefect, which takes seconds, while the server starts.
        from flows.pipeline import run_name_and_tags, run_stages
        from flows.run.flow_run import in_flow_run

        server.wait()
        result = in_flow_run("pipeline", partial(run_stages, planned), server, *run_name_and_tags(planned))
    facts = run_facts(planned.plan, planned.terminal.outcomes)
    return {"exit_code": result.exit_code, "error": result.message if result.exit_code else ""} | facts


def why(
    *targets: Annotated[str, cyclopts.Parameter(completer=stage_names)],
    force: bool = False,
    as_json: Annotated[bool, cyclopts.Parameter(name="--json")] = False,
) -> None:
    """Show which stages would run, and why.

    Parameters
    ----------
    targets
        Stages of dvc.yaml; all of them when none is named.
    force
        Plan as for `run --force`.
    as_json
        Print a JSON list, for other programs.
    """
    from rich.console import Console

    from flows.plan.graph import make_plan
    from flows.run.terminal import plan_table
    from stages.runtime.preflight import check_before_run, check_params

    check_params()
    plan = make_plan(targets, force=force)
    if as_json:
        print(json.dumps(plan.to_dict(), indent=1))
        return
    console = Console(highlight=False)
    console.print(plan_table(plan))
    check_before_run([stage.name for stage in plan.to_do])
    if not plan.to_do:
        console.print("\nEverything is up to date.")
        return
    if plan.seconds:
        console.print(f"\nThe stages that may run took {plan.seconds:.0f} s last time.")
    from flows.run.programs import checks, redactor

    for number, line in enumerate(checks(plan, redactor())):
        console.print(line if number else f"\n{line}", markup=False, soft_wrap=True)


def params(*words: Annotated[str, cyclopts.Parameter(completer=words_of_params)], yes: bool = False) -> None:
    """Compose presets of conf/ and values into params.yaml, showing the difference first.

    Parameters
    ----------
    words
        GROUP=CHOICE, e.g. model=gpt2, a dotted key and its value, e.g. train.max_steps=1000, or compute=20 (TFLOP) or
        compute=10min (on this machine): the best size, batch, steps and rates for so much training.
    yes
        Write without asking.
    """
    from rich.console import Console

    from flows.project import compose
    from stages.runtime.atomic import atomic_write
    from stages.runtime.preflight import check_before_run
    from stages.runtime.section import PARAMS_FILE, read_yaml

    console = Console(highlight=False, soft_wrap=True)
    if not words:
        console.print(compose.describe_groups(compose.preset_groups()).replace("; ", "\n"))
        return
    after, of_dial = compose.composed_with_dial(words)
    before = PARAMS_FILE.read_text(encoding="utf-8")
    lines = compose.difference(before, after)
    for line in lines:
        console.print(line, markup=False, style={"+": "green", "-": "red", "@": "cyan"}.get(line[0]))
    if of_dial:
        console.print("\n".join(["", *of_dial]), markup=False)
    if not lines:
        console.print("params.yaml says so already.")
        return
    try:
        check_before_run(values=read_yaml(after))
    except UserError as error:
        console.print(f"\nwarning: a run would be refused: {error}", markup=False, style="yellow")
    if compose.changes_training(before, after):
        console.print(f"\n{compose.answer(compose.FORECAST, after)}", markup=False, end="")
    if not yes and not sys.stdin.isatty():
        raise UserError("params.yaml is left as it was; --yes writes without asking")
    if not yes and input("write params.yaml? [y/N] ").strip().lower() not in ("y", "yes"):
        console.print("params.yaml is left as it was.")
        return
    line_end = "\r\n" if b"\r\n" in PARAMS_FILE.read_bytes() else "\n"
    atomic_write(PARAMS_FILE, after.replace("\n", line_end))
    console.print("params.yaml is written; `parrotflow why` says what would run.")


def reproduce(request: Annotated[ReproduceOptions, cyclopts.Parameter(name="*")]) -> None:
    """Rebuild a published revision from what it records, and say whether the result is the same.

    This runs the revision's code on this machine. You are shown where it comes from, and asked first.

    Ends with `bit-identical` or `equal within intervals` (exit code 0), or `not reproduced` (1) with the first
    difference and the recorded facts that differ here. Exit code 2: it could not be tried, e.g. the revision is
    damaged. With --segment: 0 if the steps lead to the recorded state, 3 if not. The same command continues after
    Ctrl-C or a kill.
    """
    from flows.reproduce.reproduction import run_reproduction as rebuild

    raise SystemExit(rebuild(request))


def table(name: ExperimentName, /, *, check: bool = False, as_json: AsJson = False) -> dict[str, Any]:
    """Make an experiment's tables and figures from its recorded runs, and check its claims.

    Parameters
    ----------
    name
        A file in experiments/ without its suffix, or a path.
    check
        Write nothing: compare each number of the runs with the last commit's. Exits with 1 if one differs by more than
        the interval committed with it.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from flows.experiments import results as made
    from flows.experiments.forms import markdown

    results = made.compute(name)
    if check:
        lines, same = made.check(name, results)
        print("\n".join(lines))
        return {"exit_code": int(not same), "differences": lines[:-1]}
    if {*results.data.frame["state"]} == {"not run"}:
        raise UserError(f"{name}: no run is on record yet; `parrotflow sweep {name}` runs them")
    written, console = made.write_experiment_results(name, results), Console(highlight=False)
    for text in map(markdown, results.tables):
        console.print(Markdown(text) if console.is_terminal else text, markup=False, soft_wrap=not console.is_terminal)
    print("\n".join([*made.summary_lines(results), *map(str, written)]))
    return made.table_facts(name, results)


def sweep(
    name: ExperimentName,
    /,
    *,
    retry: bool = False,
    at_once: int = 1,
    pool: bool = False,
    dry: bool = False,
    wait: bool = False,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Run the cells of an experiment that have no current result, and make its tables and figures.

    Each cell becomes a DVC experiment. The same command continues after Ctrl-C or a kill; a level or a seed that is
    added runs only the new cells.

    Parameters
    ----------
    name
        A file in experiments/ without its suffix, or a path.
    retry
        Also run the cells that failed.
    at_once
        Run this many cells at a time, each with its share of the GPUs, or of the cores if there is no GPU.
    pool
        Run the cells on the workers of a Prefect work pool, not here: that of the deployment `sweep-cell`.
    dry
        Only show which cells would run, and why.
    wait
        Wait for another run in this folder instead of refusing.
    """
    from flows.sweep import run_cells as sweeps

    if dry:
        cells = sweeps.planned(name)
        for cell, standing in cells:
            print(f"{cell.label}: {standing.reason or 'up to date'}")
        failed = 0 if retry else sum(standing.failed for _, standing in cells)
        waiting = f"; {failed} failed, `--retry` runs them again" if failed else ""
        wanted = sum(bool(standing.reason) for _, standing in cells) - failed
        print(f"{wanted} of {len(cells)} cells would run{waiting}")
        return {"to_run": wanted, "cells": [{"cell": one.label, "why": why.reason or ""} for one, why in cells]}
    if at_once < 1 or (pool and at_once > 1):
        raise UserError("--at-once: expected 1 or more; it applies to this machine, not to --pool")

    run_cells = partial(_run_cells, pool=pool, at_once=at_once)
    missing = sweeps.run_sweep(name, run_cells=run_cells, retry=retry, wait=wait)
    facts = table(name)
    if missing:
        print("\n".join(missing))
    return facts | {"exit_code": int(bool(missing)), "error": "; ".join(missing)}


def _run_cells(
    batch: "Batch", head: str, keys: "Mapping[str, Mapping[str, str]]", *, pool: bool, at_once: int
) -> "dict[str, Run]":
    """Run the cells of a sweep at the commit `head` in one flow run; return their runs by the cells' ids."""
    from flows.run.programs import stage_environment
    from flows.run.server import start_server

    environment, server = stage_environment(batch.targets), start_server()
    server.reach_directly()
    # These import Prefect, which takes seconds, while the server starts.
    if pool:
        from flows.sweep.pool import run_cells_on_pool

        return run_cells_on_pool(batch, head, keys, server)
    from flows.sweep.local import run_cells_here

    return run_cells_here(batch, head, keys, environment, server, at_once)


def serve() -> None:
    """Serve the deployments `nightly` and `on-demand` on this machine, until Ctrl-C, which pauses the schedule.

    They are recorded and started by the Prefect server of PREFECT_API_URL, else by `parrotflow ui`.
    """
    from flows.run.server import Server

    os.environ.setdefault("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    Server(os.environ["PREFECT_API_URL"]).wait()
    warnings.filterwarnings("ignore", "coroutine 'Runner.astop'")  # of Prefect, which pauses the schedule all the same
    # Prefect reads the server's address when it is imported.
    import prefect

    from flows.scheduled import running_runs, served

    for name in running_runs():
        print(
            f"{name} is recorded as running; if it was killed, the next run starts some five minutes later", flush=True
        )
    with suppress(KeyboardInterrupt):
        prefect.serve(*served())


def ui(*, port: int = 4200) -> None:
    """Open the Prefect UI on this machine, with the runs so far, until Ctrl-C: `prefect server start`.

    Parameters
    ----------
    port
        Where the UI listens on loopback.
    """
    private_state_dir()  # in which Prefect keeps its database: it makes no parents
    os.environ["PREFECT_SERVER_UI_API_URL"] = f"http://127.0.0.1:{port}/api"  # else the pages ask at port 4200
    print(f"The Prefect UI: http://127.0.0.1:{port} (Ctrl-C ends it)", flush=True)
    start = ["--no-prompt", "server", "start", "--host", "127.0.0.1", "--port", str(port)]  # else it asks for a profile
    os.execv(sys.executable, [sys.executable, "-m", "prefect", *start])


def doctor(*, cache: bool = False, free: bool = False, as_json: AsJson = False) -> dict[str, Any]:
    """Check whether this machine is ready, and what to do about each fault. Exits with 1 if one stops a run.

    Parameters
    ----------
    cache
        Also read all of DVC's cache, and remove each entry that is damaged.
    free
        Also delete the checkpoints of earlier runs: all but those of the newest run, of the last finished one, and of
        the run that train.start_from names.
    """
    from rich.console import Console
    from rich.markup import escape

    from flows.project.doctor import examine_machine
    from flows.run.locks import run_lock

    console, findings = Console(highlight=False, soft_wrap=True), []
    style = {"ok": "green", "note": "yellow", "fault": "red"}
    with run_lock("`parrotflow doctor`") if cache or free else nullcontext():
        for finding in examine_machine(whole_cache=cache, free=free):
            findings.append(asdict(finding))
            console.print(f"[{style[finding.level]}]{finding.level:>5}[/]  {finding.what}: {escape(finding.found)}")
            if finding.remedy:
                console.print(f"       → {escape(finding.remedy)}")
    return {"exit_code": int(any(one["level"] == "fault" for one in findings)), "findings": findings}


COMMANDS: dict[str, dict[str, Callable[..., dict[str, Any] | None] | tuple[str, str]]] = {
    "Start here": {
        "run": run,
        "why": why,
        "params": params,
        "doctor": doctor,
        "sample": ("stages.evaluate.commands.sample:sample", "Continue a prompt with the trained model."),
    },
    "Results": {
        "log": ("flows.results.log:show_log", "List the runs of this folder: what changed, and what came out."),
        "compare": (
            "flows.results.compare:show_comparison",
            "Show what differs between two runs, and the better one.",
        ),
        "published list": ("stages.publish.commands.published:list_revisions", "List the revisions, the best first."),
        "published verify": ("stages.publish.commands.published:verify", "Check the files and signatures."),
        "published promote": ("stages.publish.commands.published:promote", "Make main point to a revision."),
        "reproduce": reproduce,
        "table": table,
    },
    "Experiments": {"sweep": sweep},
    "Data": {
        "data trace": ("stages.train.commands.trace:trace", "List the documents that a training step trained on."),
    },
    "Deployments": {"serve": serve, "ui": ui},
}
"""Heading -> name -> the command: a function, or the place of one whose imports are slow, and its summary."""

PARENTS = {
    "published": "Revisions that are published in a folder; `hf` manages those of the Hub.",
    "data": "Inspect the training data.",
}
"""The first words of commands that have two."""


def make_app() -> cyclopts.App:
    """Make the application of the commands in `COMMANDS`."""
    made = cyclopts.App(
        name="parrotflow",
        help="Train causal language models from scratch; only what changed reruns.",
        default_parameter=cyclopts.Parameter(negative=""),  # no --no-dry
        version=lambda: metadata.version("parrotflow"),
        suppress_keyboard_interrupt=False,  # run_stage says what a Ctrl-C leaves behind
    )
    for heading, commands in COMMANDS.items():
        group = cyclopts.Group.create_ordered(heading)
        for number, (words, command) in enumerate(commands.items()):
            first, _, second = words.partition(" ")
            if second and first not in made:
                made.command(cyclopts.App(name=first, help=PARENTS[first], group=group, sort_key=number))
            parent, name, heading_here = (made[first], second, None) if second else (made, first, group)
            if isinstance(command, tuple):
                parent.command(command[0], name, help=command[1], group=heading_here, sort_key=number)
            else:
                parent.command(command, name, group=heading_here, sort_key=number)
    made.register_install_completion_command(help="Complete commands, stages and keys with Tab in bash and zsh.")
    return made


app = make_app()


def main() -> None:
    """The console script."""
    gc.set_threshold(100_000)  # from 700: what a command imports stays, and is not worth looking through so often
    run_stage(run_command_line)


def run_command_line() -> None:
    """Run the command of the command line in the project's root.

    With `--json` the last line of standard output is one object, also for a command that is refused: `ok`, `exit_code`,
    `error`, `seconds`, and the facts that the command returns. (`why`, `log` and `compare` print only JSON.)
    """
    as_json, began = "--json" in sys.argv, time.perf_counter()
    answer: dict[str, Any] = {"exit_code": 1, "error": ""}
    try:
        facts = called()
        as_json &= facts is not None
        answer |= {"exit_code": 0} | (facts or {})
    except UserError as error:
        answer |= {"exit_code": error.exit_code, "error": str(error)}
        raise
    except SystemExit as end:
        answer |= {"exit_code": end.code or 0}
        raise
    except KeyboardInterrupt:
        answer |= {"exit_code": EXIT_INTERRUPTED, "error": "interrupted"}
        raise
    finally:
        if as_json:
            whole = {"ok": not answer["exit_code"], "seconds": round(time.perf_counter() - began, 1)} | answer
            print(TypeAdapter(Any).dump_json(whole).decode(), flush=True)
    raise SystemExit(answer["exit_code"])


def called() -> dict[str, Any] | None:
    """Call the command of the command line; what it returns."""
    enter_project()
    prepare_environment()
    try:
        facts: dict[str, Any] | None = app(exit_on_error=False, print_error=False, result_action="return_value")
    except cyclopts.UnknownCommandError as error:  # whose own text imports every command
        raise UserError(f"{' '.join(error.unused_tokens or [])}: no such command; see `parrotflow --help`") from None
    except cyclopts.MissingArgumentError as error:
        completer = error.argument.parameter.completer if error.argument else None
        offered = f" There are {', '.join(completer(None))}." if completer else ""  # type: ignore[arg-type]  # ours ignore it
        raise UserError(f"{error}{offered}") from None
    except cyclopts.CycloptsError as error:
        raise UserError(str(error)) from None
    return facts


if __name__ == "__main__":
    main()
