"""A checkpoint's manifest: which step it is, how it came about, and the sha256 of each of its files."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from pickle import UnpicklingError

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.formats.revision.execution import Session
from stages.runtime.atomic import atomic_write
from stages.runtime.hashes import file_sha256
from stages.train.checkpoint.history import History
from stages.train.checkpoint.restricted import METADATA, check_metadata

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: what is neither in the weights nor in the optimizer's state."""

    step: int
    """Optimizer steps done."""
    training_loss: float
    """Of the last step, nats per token."""
    max_steps: int
    """`train.max_steps` of the run that saved this."""
    log_every_steps: int
    """Steps between the points of its training curves."""
    evaluate_every_steps: int
    """Steps between the points of its validation curves."""


class Manifest(BaseModel):
    """The content of manifest.json."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    step: int
    training_loss: float
    max_steps: int
    log_every_steps: int
    evaluate_every_steps: int
    sha256: dict[str, str]
    """File name -> hash, in hex."""
    sessions: list[Session] = []
    """How the steps until this one were executed; empty in checkpoints of before this was recorded."""
    contents: dict[int, str] = {}
    """Step of this checkpoint and of those before it -> `content_sha256`."""


def write_manifest(checkpoint: Path, progress: Progress, history: History, sha256: dict[str, str]) -> None:
    """Write it: the last of a checkpoint's files."""
    manifest = Manifest(
        **asdict(progress),
        sha256=sha256,
        sessions=history.sessions_until(progress.step),
        contents=history.contents,
    )
    atomic_write(checkpoint / MANIFEST, json.dumps(manifest.model_dump(mode="json"), indent=1))


def read_progress(checkpoint: Path) -> Progress:
    """How far a checkpoint without a fault is."""
    manifest = _read(checkpoint)
    return Progress(**{field.name: getattr(manifest, field.name) for field in fields(Progress)})


def read_history(checkpoint: Path) -> History:
    """How a checkpoint without a fault came about."""
    manifest = _read(checkpoint)
    return History(manifest.sessions, manifest.contents)


def fault(checkpoint: Path) -> str:
    """Why a checkpoint cannot be used; empty where its files are those of its manifest."""
    try:
        manifest = _read(checkpoint)
    except (OSError, ValidationError):
        return f"it has no complete {MANIFEST}"
    for name in sorted({METADATA, *manifest.sha256}):
        file = checkpoint / name
        if not file.is_file() or file_sha256(file) != manifest.sha256.get(name):
            return f"{name} is missing or damaged"
    try:
        check_metadata(checkpoint / METADATA)
    except UnpicklingError as error:
        return f"{METADATA} is not torch's: {error}"
    return ""


def _read(checkpoint: Path) -> Manifest:
    return Manifest.model_validate_json((checkpoint / MANIFEST).read_bytes())
