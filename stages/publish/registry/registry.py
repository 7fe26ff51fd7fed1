"""What `parrotflow published` asks of a place where revisions are: a folder (`local.py`) or the Hub (`remote.py`)."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Protocol

from stages.publish.gate import Gate
from stages.publish.registry.history import Move, Why
from stages.runtime.entry import UserError

LEAST_DIGITS = 4
"""Of an abbreviated name, as in git."""


class Registry(Protocol):
    """The revisions of one model."""

    location: str
    """The folder, or `owner/name` on the Hub."""

    freed: str
    """What happens to the bytes of a removed revision, in words."""

    def changing(self) -> AbstractContextManager[None]:
        """Let nobody else change what is here meanwhile, as far as the place can."""

    def names(self) -> list[str]:
        """The revisions, the first published first."""

    def main(self) -> str | None:
        """The revision that `main` leads to."""

    def moves(self) -> list[Move]:
        """The moves of `main`, the last one last."""

    def published(self, name: str) -> datetime | None:
        """When a revision was published first."""

    def sizes(self, name: str) -> Mapping[str, int]:
        """File of a revision -> bytes."""

    def file(self, name: str, path: str) -> Path | None:
        """A file of a revision on this machine; None where the revision lacks it."""

    def folder(self, name: str) -> Path:
        """The whole revision on this machine."""

    def steps(self, name: str) -> Mapping[int, str]:
        """Exported step of a revision's run -> where it is: its folder, or its tag."""

    def step_folder(self, name: str, step: int) -> Path:
        """An exported step of a revision's run on this machine."""

    def move_main(self, name: str, why: Why, gate: Gate | None) -> None:
        """Move `main` to a revision; where a gate is given, only if it passes."""

    def freed_by_removing(self, name: str) -> int:
        """The bytes that removing a revision makes free."""

    def remove(self, name: str) -> None:
        """Remove a revision, and the steps of its run where it is the run's last."""


def full_name(registry: Registry, given: str) -> str:
    """The revision that `given` means: its name, the first digits of it, or `main`. Raises UserError."""
    if given == "main":
        return main_revision(registry)
    names = registry.names()
    found = [name for name in names if name.startswith(given)]
    if given in names or (len(found) == 1 and len(given) >= LEAST_DIGITS):
        return given if given in names else found[0]
    if len(found) > 1:
        raise UserError(f"{given}: ambiguous in {registry.location}: {', '.join(found)}; give more digits")
    hint = f" (give at least {LEAST_DIGITS} digits)" if found else ""
    known = ", ".join(names) or "none"
    raise UserError(f"{given}: no revision of {registry.location}{hint}; there are: {known}")


def main_revision(registry: Registry) -> str:
    """The revision that `main` leads to. Raises UserError where there is none."""
    name = registry.main()
    if name is None:
        raise UserError(f"{registry.location}: main leads to no revision; `parrotflow run publish` publishes one")
    return name


def newest_first(registry: Registry) -> Iterator[str]:
    """The revisions, the last published first."""
    return reversed(registry.names())
