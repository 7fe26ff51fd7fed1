"""`parrotflow params`."""

import sys
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from flows.project import compose
from flows.run.locks import lock_holder
from flows.run.terminal import confirmed
from stages.runtime.atomic import atomic_write
from stages.runtime.errors import UserError
from stages.runtime.preflight import check_before_run
from stages.runtime.section import PARAMS_FILE, flatten, read_params_file, read_yaml


def words_of_params(_: object) -> list[str]:
    """The shell's completions for `params`: GROUP=CHOICE and dotted keys."""
    choices = [f"{group}={choice}" for group, names in compose.preset_groups().items() for choice in names]
    return [*choices, *(f"{key}=" for key in flatten(read_params_file()))]


def params(*words: Annotated[str, Parameter(completer=words_of_params)], yes: bool = False) -> None:
    """Set values and presets of conf/ in params.yaml. Shows the difference and asks before it writes.

    Parameters
    ----------
    words
        GROUP=CHOICE, e.g. model=gpt2, a dotted key and its value, e.g. train.max_steps=1000, or compute=20 (TFLOP) or
        compute=10min (on this machine): the best size, batch, steps and rates for that much training.
    yes
        Write without asking.
    """
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
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
        console.print("params.yaml already has these values.")
        return
    try:
        check_before_run(values=read_yaml(after))
    except UserError as error:
        console.print(f"\nwarning: a run would be refused: {error}", markup=False, style="yellow")
    if compose.changes_training(before, after):
        console.print("\nforecast of the training:")
        console.print(compose.answer(compose.FORECAST, after), markup=False, end="")
    if not yes and not sys.stdin.isatty():
        raise UserError("params.yaml was not changed; pass --yes to write without asking")
    if holder := lock_holder():
        warning = f"warning: {holder} is using this folder; stages that it has not started would read the new values"
        console.print(f"\n{warning}", markup=False, style="yellow")
    if not yes and not confirmed("write params.yaml?"):
        console.print("params.yaml was not changed.")
        return
    line_end = "\r\n" if b"\r\n" in PARAMS_FILE.read_bytes() else "\n"
    atomic_write(PARAMS_FILE, after.replace("\n", line_end))
    console.print("Wrote params.yaml; `parrotflow why` shows what would run.")
