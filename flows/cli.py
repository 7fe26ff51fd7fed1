"""The command line, `parrotflow --help`. What is heavy is imported where it is used."""

import json
import subprocess
import sys
from importlib import import_module
from typing import Annotated

import cyclopts

from flows.environment import prepare_environment
from stages.runtime.entry import UserError, run_stage

app = cyclopts.App(name="parrotflow", help="Train causal language models from scratch; only what changed reruns.")

data = cyclopts.App(name="data", help="Questions about the data; nothing is changed.")
app.command(data)


@app.command
def run(
    *targets: str,
    force: bool = False,
    downstream: bool = False,
    keep_going: bool = False,
    pull: bool = False,
    wait: bool = False,
    dry: bool = False,
) -> None:
    """Bring the pipeline, or the targets with what they need, up to date.

    Parameters
    ----------
    targets
        Stages of dvc.yaml; all of them when none is named.
    force
        Run them whatever DVC knows.
    downstream
        Take what needs the targets instead of what they need.
    keep_going
        After a failure, finish what does not hang on it.
    pull
        Fetch missing results from the DVC remote.
    wait
        Wait for another run in this folder instead of refusing.
    dry
        Only say what would run, and why.
    """
    if dry:
        why(*targets, force=force, downstream=downstream)
        return
    from flows.run import early_start as ahead

    options = {"force": force, "downstream": downstream, "keep_going": keep_going, "pull": pull, "wait": wait}
    ahead.run(lambda: import_module("flows.pipeline").run_here, targets, **options)


@app.command
def why(
    *targets: str,
    force: bool = False,
    downstream: bool = False,
    as_json: Annotated[bool, cyclopts.Parameter(name="--json", negative="")] = False,
) -> None:
    """Say which stages would run, and because of what. Nothing is changed.

    Parameters
    ----------
    targets
        Stages of dvc.yaml; all of them when none is named.
    force
        As if `run --force` were asked.
    downstream
        Take what needs the targets instead of what they need.
    as_json
        Print a JSON list, for other programs.
    """
    from rich.console import Console

    from flows.plan.graph import make_plan
    from flows.plan.params import check_params
    from flows.show.terminal import plan_table

    check_params()
    plan = make_plan(targets, force=force, downstream=downstream)
    if as_json:
        print(json.dumps(plan.to_dict(), indent=1))
        return
    console = Console(highlight=False)
    console.print(plan_table(plan))
    for warning in plan.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)
    if not plan.to_do:
        console.print("\nEverything is up to date.")
        return
    if plan.seconds:
        console.print(f"\nLast time, what may run took {plan.seconds:.0f} s.")
    for stage in plan.only_remarks:
        console.print(f'{stage.name}: only remarks changed; parrotflow accept {stage.name} --because "..." skips it')


@app.command
def accept(stage: str, *, because: str = "", undo: Annotated[bool, cyclopts.Parameter(negative="")] = False) -> None:
    """Declare a stage up to date without a run, with the reason in accepted.yaml, which the model card shows.

    Parameters
    ----------
    stage
        A stage whose inputs have changed.
    because
        Why the change leaves its result as it was.
    undo
        Take back what was accepted of the stage: it has to run again.
    """
    from flows.project.accept import LEDGER, accept
    from flows.project.accept import undo as take_back

    if undo:
        take_back(stage)
        print(f"{stage} is no longer accepted as up to date; `parrotflow why` says what would run.")
        return
    entry = accept(stage, because)
    print(f"{entry.stage} is accepted as up to date; {LEDGER} says why. Commit it with dvc.lock.")


@app.command
def params(*words: str, yes: bool = False) -> None:
    """Compose presets of conf/ and values into params.yaml, showing the difference first.

    Parameters
    ----------
    words
        GROUP=CHOICE, e.g. model=gpt2, or a dotted key and its value, e.g. train.max_steps=1000.
    yes
        Write without asking.
    """
    from rich.console import Console

    from flows.project import compose
    from stages.runtime.section import PARAMS_FILE

    console = Console(highlight=False, soft_wrap=True)
    if not words:
        console.print(compose.describe(compose.groups()).replace("; ", "\n"))
        return
    before, after = PARAMS_FILE.read_text(encoding="utf-8"), compose.composed_text(words)
    lines = compose.difference(before, after)
    if not lines:
        console.print("params.yaml says so already.")
        return
    for line in lines:
        console.print(line, markup=False, style={"+": "green", "-": "red", "@": "cyan"}.get(line[0]))
    if not yes and not confirmed():
        raise UserError("params.yaml is left as it was; --yes writes without asking")
    compose.write_params(after)
    console.print("params.yaml is written; `parrotflow why` says what would run.")


def confirmed() -> bool:
    """Ask in the terminal; without one the answer is no."""
    return sys.stdin.isatty() and input("write params.yaml? [y/N] ").strip().lower() in ("y", "yes")


@app.command
def sample(prompt: str, *options: Annotated[str, cyclopts.Parameter(allow_leading_hyphen=True)]) -> None:
    """Continue a prompt with the trained model. For options see `python -m stages.evaluate.commands.sample --help`."""
    run_module("stages.evaluate.commands.sample", prompt, *options)


@data.command
def whatif(*changes: str) -> None:
    """What other thresholds of `clean` would drop, e.g. filters.line_length_maximum=500. Nothing is changed."""
    run_module("stages.clean.commands.whatif", *changes)


@data.command
def where(*options: Annotated[str, cyclopts.Parameter(allow_leading_hyphen=True)]) -> None:
    """The documents that a training step saw: --step N [--row R]."""
    run_module("stages.train.commands.trace", *options)


def run_module(module: str, *arguments: str) -> None:
    """Run a stage's own command as a child, and leave as it left."""
    raise SystemExit(subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode)


@app.command
def serve(*, port: int = 4200) -> None:
    """Run the deployments of prefect.yaml on this machine: on their schedules, and from Prefect's pages.

    Parameters
    ----------
    port
        Of Prefect's pages on loopback, where PREFECT_API_URL names no server.
    """
    from flows.deploy.serve import serve_deployments, server

    with server(port) as address:
        print(f"Prefect's pages: {address.removesuffix('/api')} (Ctrl-C ends)", flush=True)
        serve_deployments()


@app.command
def doctor() -> None:
    """Look whether this machine is ready, and say what to do about each fault. Leaves with 1 if one stops a run."""
    from rich.console import Console
    from rich.markup import escape

    from flows.project.doctor import examine

    console, faults = Console(highlight=False, soft_wrap=True), 0
    style = {"ok": "green", "note": "yellow", "fault": "red"}
    for finding in examine():
        faults += finding.level == "fault"
        console.print(f"[{style[finding.level]}]{finding.level:>5}[/]  {finding.what}: {escape(finding.found)}")
        if finding.remedy:
            console.print(f"       → {escape(finding.remedy)}")
    if faults:
        raise SystemExit(1)


def main() -> None:
    """The console script."""
    prepare_environment()
    run_stage(app)


if __name__ == "__main__":
    main()
