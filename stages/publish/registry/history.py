"""The moves of `main` in a folder: `history.jsonl`, a line for each, and what a rollback follows from.

A move is written before `main` is moved. After a crash between the two the last line names a revision that `main` does
not lead to: such lines never happened, are not shown, and are replaced by the next move.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from stages.formats.revision.layout import HISTORY
from stages.runtime.atomic import atomic_write

Why: TypeAlias = Literal["published", "promoted", "rolled back"]


class Move(BaseModel):
    """One move of `main`."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    at: datetime
    """UTC."""
    before: str | None = Field(alias="from")
    """The revision that `main` led to; None for the first publication."""
    to: str
    why: Why


def read_moves(location: Path, main: str | None) -> list[Move]:
    """The moves up to the one that led `main` to where it leads now; empty where none is recorded."""
    path = location / HISTORY
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    moves = [Move.model_validate_json(line) for line in lines]
    return moves[:-1] if moves and moves[-1].to != main else moves


def record_move(location: Path, main: str | None, to: str, why: Why) -> None:
    """Write that `main` moves from where it leads now, which the caller does next."""
    moves = [
        *read_moves(location, main),
        Move(at=datetime.now(UTC).replace(microsecond=0), before=main, to=to, why=why),
    ]
    atomic_write(location / HISTORY, "".join(move.model_dump_json(by_alias=True) + "\n" for move in moves))


def before_main(moves: list[Move], kept: set[str]) -> str | None:
    """The revision that `main` led to before, of those that are kept; None where there is none.

    A rollback takes the move back that it follows, so the next one goes a step further: after A, B, C two rollbacks
    lead to A.
    """
    led_to: list[str] = []
    for move in moves:
        if move.before is not None and not led_to:
            led_to.append(move.before)  # published before moves were recorded
        if move.why == "rolled back" and move.to in led_to:
            del led_to[len(led_to) - led_to[::-1].index(move.to) :]
        else:
            led_to.append(move.to)
    current = led_to[-1] if led_to else None
    return next((name for name in reversed(led_to) if name in kept and name != current), None)
