"""The command line. `COMMANDS` lists the commands in the order of `parrotflow --help`."""

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
from stages.runtime.errors import EXIT_INTERRUPTED, UserError, did_you_mean
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
    "Experiments": {"sweep": "flows.sweep.run_cells:sweep"},
    "Data": {"data trace": "stages.train.commands.trace:trace"},
    "Deployments": {"serve": "flows.commands.serve:serve", "ui": "flows.commands.serve:ui"},
}
"""Heading -> name -> MODULE:FUNCTION of the command, which is imported only when it is called."""

CommandResult: TypeAlias = dict[str, Any] | int | None
"""The return value of a command: facts for `--json`, an exit code, or nothing."""

PARENTS = {
    "published": "List, verify and promote revisions published in a folder; for those on the Hub use the command `hf`.",
    "data": "Inspect the training data.",
}
"""First word of two-word commands -> description."""


def description(path: str) -> str:
    """A command's docstring without its parameters, read from the source: importing all commands takes seconds."""
    module, _, function = path.partition(":")
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    match = re.search(rf'^def {function}\(.*?"""(.*?)(\n\n    Parameters\n|""")', source, re.DOTALL | re.MULTILINE)
    return inspect.cleandoc(match[1]) if match else ""


def make_app() -> cyclopts.App:
    """The application with all `COMMANDS`."""
    application = cyclopts.App(
        name="parrotflow",
        help="Train causal language models from scratch; only what changed reruns.",
        default_parameter=cyclopts.Parameter(negative=""),  # no --no-dry
        version=lambda: metadata.version("parrotflow"),
        suppress_keyboard_interrupt=False,  # run_stage handles it
    )
    for heading, commands in COMMANDS.items():
        group = cyclopts.Group.create_ordered(heading)
        for number, (words, path) in enumerate(commands.items()):
            first, _, second = words.partition(" ")
            if second and first not in application:
                application.command(cyclopts.App(name=first, help=PARENTS[first], group=group, sort_key=number))
            parent, name, own_group = (application[first], second, None) if second else (application, first, group)
            parent.command(path, name, help=description(path), group=own_group, sort_key=number)
    application.register_install_completion_command(
        help="Install Tab completion of commands, stages and keys in bash or zsh."
    )
    return application


app = make_app()


def main() -> None:
    """The console script."""
    gc.set_threshold(100_000)  # the default, 700, would often traverse imported objects that are never freed
    run_stage(run_command_line)


def run_command_line() -> None:
    """Run the command in the project's root.

    With `--json` the last line of standard output is an object, also after an error: `ok`, `exit_code`, `error`,
    `seconds`, and the facts that the command returns.
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
    """Call the command and return its result."""
    enter_project()
    prepare_environment()
    if sys.stderr.isatty() and sys.argv[1:2] in (["run"], ["why"], ["sweep"]) and "--help" not in sys.argv:
        print("checking what has changed ...", file=sys.stderr)  # to import DVC and Prefect takes seconds
    try:
        returned: CommandResult = app(exit_on_error=False, print_error=False, result_action="return_value")
    except cyclopts.UnknownCommandError as error:  # its own message would import every command
        tokens = error.unused_tokens or [""]
        whole = {words.split()[-1]: words for commands in COMMANDS.values() for words in commands}
        meant = did_you_mean(tokens[0], [*whole, *PARENTS], whole)
        raise UserError(f"{' '.join(tokens)}: no such command; see `parrotflow --help`{meant}") from None
    except cyclopts.MissingArgumentError as error:
        from flows.experiments.experiment import experiment_names

        is_experiment = error.argument and error.argument.parameter.completer is experiment_names
        offered = f" Experiments: {', '.join(experiment_names())}." if is_experiment else ""
        raise UserError(f"{error}{offered}") from None
    except cyclopts.UnusedCliTokensError as error:
        extra = " ".join(error.unused_tokens or [])
        raise UserError(f"{extra}: one argument too many; put a text with spaces in quotes") from None
    except cyclopts.CycloptsError as error:
        raise UserError(str(error)) from None
    return returned


if __name__ == "__main__":
    main()
