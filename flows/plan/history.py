"""How long each stage took when it ran last on this machine. Without it only the estimates are missing."""

import json
from pathlib import Path

from stages.runtime.atomic import atomic_write

SECONDS = Path(".parrotflow/seconds.json")


def read_seconds() -> dict[str, float]:
    """How long each stage took when it ran last, seconds."""
    try:
        return {name: float(value) for name, value in json.loads(SECONDS.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def remember_seconds(name: str, seconds: float) -> None:
    """Keep the time of a stage that ran."""
    atomic_write(SECONDS, json.dumps(read_seconds() | {name: round(seconds, 1)}, indent=1, sort_keys=True))
