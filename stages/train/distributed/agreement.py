"""What all processes must decide alike: decided by the main process, or by a vote. Every process calls these."""

from collections.abc import Callable
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from stages.runtime.entry import UserError

Result = TypeVar("Result")


def on_main(accelerator: Accelerator, work: Callable[[], Result]) -> Result:
    """What `work` returns on the main process, on every process; a UserError there is raised on each."""
    outcome: list[Result | UserError | None] = [None]
    if accelerator.is_main_process:
        try:
            outcome = [work()]
        except UserError as error:
            outcome = [error]
    if accelerator.num_processes > 1:
        broadcast_object_list(outcome)
    if isinstance(outcome[0], UserError):
        raise outcome[0]
    return outcome[0]  # type: ignore[return-value]


def count(accelerator: Accelerator, vote: bool) -> int:
    """How many processes vote yes."""
    votes = torch.tensor(float(vote), device=accelerator.device)
    return int(accelerator.reduce(votes, "sum").item())


def finish_together(accelerator: Accelerator) -> None:
    """Wait until every process is here; none exchanges anything after that, so each may end while others still work."""
    accelerator.wait_for_everyone()
