"""How the terminal is written to: lines, tables without lines, numbers and quoted words."""

import os
import shlex
import sys
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

NUMBERS = {"seconds", "last took", "stages left"}
"""Columns that are aligned right."""


class LastingConsole(Console):
    """If the reader has gone (`parrotflow run | head`), the run continues silently."""

    def on_broken_pipe(self) -> None:
        """Do not exit, as rich would."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print a line; if the reader has gone, nothing."""
    LastingConsole(highlight=False).out(text, highlight=False)


def columns(*headings: str, cut: str = "") -> Table:
    """A table without lines. Long texts are folded; with `cut` only that column, of texts `one_line`, gets shorter."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading in NUMBERS else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=bool(cut) and heading != cut)
    return table


def one_line(text: str) -> Text:
    """A text that is cut off at the end of its column."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def in_digits(value: float) -> str:
    """At least four significant digits, thousands with commas."""
    return f"{value:,.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"


def quoted(value: str) -> str:
    """A value as a shell reads it, in double quotes where they suffice."""
    return shlex.quote(value) if set(value) & {*'"$`\\!\n'} else f'"{value}"'
