"""What a stage prints is shown in many places: the values of secrets are replaced by their names before."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.plan.graph import Plan

SERVER_KEY = "PREFECT_API_AUTH_STRING"
"""The password of Prefect's server, which no stage needs."""

HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}\b")
SHORTEST_SECRET = 8
"""A shorter value would be found inside words and numbers, and the marks of it would give it away."""


def secrets_of(plan: "Plan") -> set[str]:
    """The variables of the environment that some stage of the repository names as a secret."""
    return {name for name in plan.secrets if name in os.environ}


def unhidden(names: Iterable[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """A warning for each of these variables whose value `redactor` leaves where it is."""
    short = [name for name in sorted(names) if 0 < len(environment.get(name, "")) < SHORTEST_SECRET]
    return [
        f"warning: {name} has fewer than {SHORTEST_SECRET} characters, so it is not hidden where a stage prints it"
        for name in short
    ]


def redactor(names: Iterable[str], environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """A function that replaces the values of these environment variables, and tokens of the Hub, by their names."""
    values = {environment[name]: name for name in names if len(environment.get(name, "")) >= SHORTEST_SECRET}

    def redact(text: str) -> str:
        for value, name in values.items():
            text = text.replace(value, f"[{name}]")
        return HUB_TOKEN.sub("[token]", text)

    return redact
