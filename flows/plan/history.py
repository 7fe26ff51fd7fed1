"""What earlier runs leave for later ones: how long each stage took, and the code that it ran with.

Facts of this machine, in the ignored folder; without them nothing but an estimate or a remark is missing.
"""

import json
import shutil
from collections.abc import Iterable
from hashlib import md5
from pathlib import Path

from stages.runtime.atomic import atomic_write

SECONDS = Path(".parrotflow/seconds.json")
CODE = Path(".parrotflow/code")


def read_seconds() -> dict[str, float]:
    """How long each stage took when it ran last, seconds."""
    try:
        return {name: float(value) for name, value in json.loads(SECONDS.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def remember_seconds(name: str, seconds: float) -> None:
    """Keep the time of a stage that ran."""
    atomic_write(SECONDS, json.dumps(read_seconds() | {name: round(seconds, 1)}, indent=1, sort_keys=True))


def remember_code(files: Iterable[Path]) -> None:
    """Keep files by their md5, which is how dvc.lock names them."""
    CODE.mkdir(parents=True, exist_ok=True)
    for file in files:
        if file.is_file():
            kept = CODE / md5(file.read_bytes()).hexdigest()
            if not kept.exists():
                shutil.copyfile(file, kept)
