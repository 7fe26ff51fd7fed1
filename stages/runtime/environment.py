"""Settings of how a run is executed, from environment variables."""

import os
from typing import overload

from stages.runtime.entry import UserError


@overload
def whole_number(variable: str, default: int, minimum: int = 1) -> int: ...
@overload
def whole_number(variable: str, default: None, minimum: int = 1) -> int | None: ...
def whole_number(variable: str, default: int | None, minimum: int = 1) -> int | None:
    """The value of a variable; `default` where it is unset or empty. Raises UserError where it is anything else."""
    given = os.environ.get(variable)
    return parsed_whole_number(f"{variable}={given}", given, minimum) if given else default


def parsed_whole_number(shown: str, text: str, minimum: int = 1) -> int:
    """A whole number from `minimum` on. Raises UserError that shows `shown` where the text is anything else."""
    if not text.strip().isdecimal() or int(text) < minimum:
        raise UserError(f"{shown}: expected a whole number, {minimum} or more")
    return int(text)
