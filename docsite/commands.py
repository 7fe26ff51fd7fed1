"""The reference of the command line: cyclopts' own page of it, and the help of the commands that stages bring along."""

import ast
import importlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path

import cyclopts

from flows import cli

ROOT = Path(__file__).parents[1]

WIDTH = "100"
"""Columns of a help text."""


def command_line() -> str:
    """`parrotflow --help` and that of every command, as Markdown."""
    if "sample" not in cli.app:
        cli.add_stage_commands()
    page = cli.app.generate_docs("markdown", heading_level=2, flatten_commands=True)
    first, *sections = page.split("\n## ")
    lines = ["# Commands", "", first[first.index("```console") :].strip(), ""]
    modules = dict(_modules_of_stages(cli.app, ("parrotflow",)))
    for section in sections:
        heading, _, body = section.partition("\n")
        if heading.startswith("parrotflow "):
            module = modules.get(heading)
            text = f"```text\n{help_of(module, heading)}\n```\n" if module else body.strip()
            lines += [f"## {heading}", "", text, ""]
    return "\n".join(lines)


def _modules_of_stages(app: cyclopts.App, words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each command that a stage brings along, as it is typed, with the module that it runs."""
    for name in app:
        if not name.startswith("-"):
            command = app[name].default_command
            if isinstance(command, partial):
                yield " ".join((*words, name)), command.args[0]
            yield from _modules_of_stages(app[name], (*words, name))


def help_of(module: str, command: str) -> str:
    """What `--help` of a stage's own command prints; of one that parses no options, what its module says."""
    path = Path(*module.split(".")).with_suffix(".py")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    if not any(isinstance(line, ast.Import) and line.names[0].name == "argparse" for line in tree.body):
        return ast.get_docstring(tree) or ""
    said = io.StringIO()
    with _arguments([command, "--help"]), redirect_stdout(said):
        try:
            importlib.import_module(module).main()
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"{module} --help ended with {ended.code}") from None
    return said.getvalue().rstrip()


@contextmanager
def _arguments(arguments: list[str]) -> Iterator[None]:
    """Run with these in place of this process's arguments, in a terminal of a fixed width."""
    before, columns = sys.argv, os.environ.get("COLUMNS")
    sys.argv, os.environ["COLUMNS"] = arguments, WIDTH
    try:
        yield
    finally:
        sys.argv = before
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
