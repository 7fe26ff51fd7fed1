"""The command line: `COMMANDS` lists what `parrotflow --help` shows."""

import gc
import inspect
import re
import sys
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import cyclopts
from pydantic import TypeAdapter

from flows.environment import enter_project, prepare_environment
from stages.runtime.errors import EXIT_INTERRUPTED, UserError
from stages.runtime.stage import run_stage

COMMANDS = {
    "Start here": {
        "run": "flows.commands.run:run",
        "why": "flows.commands.why:why",
        "params": "flows.commands.params:params",
        "doctor": "flows.project.doctor:doctor",
        "sample": "stages.evaluate.commands.sample:sample",
    },
    "Results": {
        "log": "flows.results.log:show_log",
        "compare": "flows.results.compare:show_comparison",
        "published list": "stages.publish.commands.published:list_revisions",
        "published verify": "stages.publish.commands.published:verify",
        "published promote": "stages.publish.commands.published:promote",
        "reproduce": "flows.reproduce.reproduction:run_reproduction",
        "table": "flows.experiments.results:table",
    },
    "Experiments": {
        "sweep": "flows.sweep.run_cells:sweep",
    },
    "Data": {
        "data trace": "stages.train.commands.trace:trace",
    },
    "Deployments": {
        "serve": "flows.commands.serve:serve",
        "ui": "flows.commands.serve:ui",
    },
}
"""Heading -> name -> the place of the command, which is imported when it is called."""

CommandResult: TypeAlias = dict[str, Any] | int | None
"""What a command returns: facts for `--json`, its exit code, or nothing."""

PARENTS = {
    "published": "List, verify and promote revisions published in a folder; for the Hub use `hf`.",
    "data": "Inspect the training data.",
}
"""The first words of commands that have two."""


def description(place: str) -> str:
    """The docstring of a command as far as its parameters, from its source: to import all commands takes seconds."""
    module, _, function = place.partition(":")
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    found = re.search(rf'^def {function}\(.*?"""(.*?)(\n\n    Parameters\n|""")', source, re.DOTALL | re.MULTILINE)
    return inspect.cleandoc(found[1]) if found else ""


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
        for number, (words, place) in enumerate(commands.items()):
            first, _, second = words.partition(" ")
            if second and first not in made:
                made.command(cyclopts.App(name=first, help=PARENTS[first], group=group, sort_key=number))
            parent, name, heading_here = (made[first], second, None) if second else (made, first, group)
            parent.command(place, name, help=description(place), group=heading_here, sort_key=number)
    made.register_install_completion_command(help="Install Tab completion of commands, stages and keys in bash or zsh.")
    return made


app = make_app()


def main() -> None:
    """The console script."""
    gc.set_threshold(100_000)  # from 700: what a command imports stays, and is not worth looking through so often
    run_stage(run_command_line)


def run_command_line() -> None:
    """Run the command of the command line in the project's root.

    With `--json` the last line of standard output is one object, also for a command that is refused: `ok`, `exit_code`,
    `error`, `seconds`, and the facts that the command returns.
    """
    as_json, began = "--json" in sys.argv, time.perf_counter()
    answer: dict[str, Any] = {"exit_code": 1, "error": ""}
    try:
        returned = called()
        as_json &= isinstance(returned, dict)
        answer |= {"exit_code": 0} | (returned if isinstance(returned, dict) else {"exit_code": returned or 0})
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


def called() -> CommandResult:
    """Call the command of the command line, and return what it returns: facts, an exit code, or nothing."""
    enter_project()
    prepare_environment()
    try:
        returned: CommandResult = app(exit_on_error=False, print_error=False, result_action="return_value")
    except cyclopts.UnknownCommandError as error:  # whose own text imports every command
        raise UserError(f"{' '.join(error.unused_tokens or [])}: no such command; see `parrotflow --help`") from None
    except cyclopts.MissingArgumentError as error:
        from flows.experiments.experiment import experiment_names

        is_experiment = error.argument and error.argument.parameter.completer is experiment_names
        offered = f" Experiments: {', '.join(experiment_names())}." if is_experiment else ""
        raise UserError(f"{error}{offered}") from None
    except cyclopts.CycloptsError as error:
        raise UserError(str(error)) from None
    return returned


if __name__ == "__main__":
    main()
