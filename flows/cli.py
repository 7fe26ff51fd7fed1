"""The command line: `parrotflow run | why | params | sample | doctor`. What is heavy is imported where it is used."""

import json
import subprocess
import sys
from typing import Annotated

import cyclopts

from flows.environment import prepare_environment
from stages.formats.entry import run_stage

app = cyclopts.App(name="parrotflow", help="Train causal language models from scratch; only what changed reruns.")


@app.command
def run(
    *targets: str,
    force: bool = False,
    downstream: bool = False,
    keep_going: bool = False,
    pull: bool = False,
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
    dry
        Only say what would run, and why.
    """
    if dry:
        why(*targets, force=force, downstream=downstream)
        return
    from flows import pipeline

    pipeline.run(targets, force=force, downstream=downstream, keep_going=keep_going, pull=pull)


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

    from flows.graph import make_plan
    from flows.params import check_params
    from flows.report import plan_table

    check_params()
    plan = make_plan(targets, force=force, downstream=downstream)
    if as_json:
        print(json.dumps(plan.to_dict(), indent=1))
        return
    console = Console(highlight=False)
    console.print(plan_table(plan))
    if not plan.to_do:
        console.print("\nEverything is up to date.")


@app.command
def sample(prompt: str, *options: Annotated[str, cyclopts.Parameter(allow_leading_hyphen=True)]) -> None:
    """Continue a prompt with the trained model. Options go to `python -m stages.evaluate.sample` (see its --help)."""
    command = [sys.executable, "-m", "stages.evaluate.sample", prompt, *options]
    raise SystemExit(subprocess.run(command, check=False).returncode)


def main() -> None:
    """The console script."""
    prepare_environment()
    run_stage(app)


if __name__ == "__main__":
    main()
