"""Decisions that all processes of a training share."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list

from stages.runtime.errors import UserError

Returned = TypeVar("Returned")

PROCESS_GROUP = InitProcessGroupKwargs(timeout=timedelta(hours=1))
"""How long a process waits for another: the main process may download a mirror or hash tens of GB. If a process fails,
the launcher ends the others (`launcher._wait`)."""


def on_main(accelerator: Accelerator, work: Callable[[], Returned]) -> Returned:
    """Run `work` on the main process. Every process calls this and returns its result or raises its UserError."""
    outcome: list[Any] = [None]
    if accelerator.is_main_process:
        try:
            outcome = [work()]
        except UserError as error:
            outcome = [error]
    if accelerator.num_processes > 1:
        broadcast_object_list(outcome)
    if isinstance(outcome[0], UserError):
        raise outcome[0]
    returned: Returned = outcome[0]
    return returned


def count(accelerator: Accelerator, vote: bool) -> int:
    """How many processes vote yes. Every process calls this."""
    votes = torch.tensor(float(vote), device=accelerator.device)
    return int(accelerator.reduce(votes, "sum").item())
