"""How many stages run at once, and which never together."""

import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stages.runtime.entry import UserError

STAGES_AT_ONCE_VARIABLE = "PARROTFLOW_STAGES_AT_ONCE"
RESOURCES_VARIABLE = "PARROTFLOW_RESOURCES"


@dataclass
class Slots:
    """Taken with all resources or not at all, so that a stage that waits for a resource blocks no other."""

    stages_at_once: int
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Of the named resources; 1 for those that are not named."""
    _used: Counter[str] = field(default_factory=Counter)
    _running: int = 0

    def take(self, resources: Collection[str]) -> bool:
        """Take a slot and the resources, if all of them are free."""
        fits = all(self._used[name] < self.capacity.get(name, 1) for name in resources)
        if not fits or self._running >= self.stages_at_once:
            return False
        self._running += 1
        self._used.update(set(resources))
        return True

    def give_back(self, resources: Collection[str]) -> None:
        """Free what was taken."""
        self._running -= 1
        self._used.subtract(set(resources))


def slots_of_this_machine() -> Slots:
    """By `PARROTFLOW_STAGES_AT_ONCE` (else 2) and `PARROTFLOW_RESOURCES`, e.g. `accelerator=2,memory=1`."""
    capacity: dict[str, int] = {}
    for item in filter(None, os.environ.get(RESOURCES_VARIABLE, "").split(",")):
        name, _, number = item.partition("=")
        capacity[name.strip()] = _whole(RESOURCES_VARIABLE, item, number)
    at_once = os.environ.get(STAGES_AT_ONCE_VARIABLE) or "2"
    return Slots(_whole(STAGES_AT_ONCE_VARIABLE, at_once, at_once), capacity)


def _whole(variable: str, given: str, number: str) -> int:
    if not number.strip().isdecimal() or int(number) < 1:
        raise UserError(f"{variable}: `{given}`: expected a whole number from 1 on")
    return int(number)
