"""A checkpoint's manifest: which step it is, how it came about, and the sha256 of each of its files."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from pickle import UnpicklingError

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.formats.revision.execution import Session
from stages.runtime.atomic import atomic_write
from stages.runtime.hashes import file_sha256
from stages.train.checkpoint.content import METADATA, check_metadata

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


@dataclass(frozen=True)
class History:
    """The sessions of a run, and the content of its checkpoints, also of those that are deleted by now.

    Every checkpoint carries it, as it carries the curves. So a run that continues takes up the history of the
    checkpoint that it continues from: what a killed run did after that is computed again and never counted.
    """

    sessions: list[Session] = field(default_factory=list)
    contents: dict[int, str] = field(default_factory=dict)
    """Step -> `content_sha256` of its checkpoint. Steps are missing where no checkpoint could be written."""

    def sessions_until(self, step: int) -> list[Session]:
        """The sessions that computed the steps 1 to `step`, the last one cut there; none that computed no step."""
        return [
            session.model_copy(update={"last_step": min(session.last_step, step)})
            for session in self.sessions
            if session.first_step <= step
        ]


class CheckpointManifest(BaseModel):
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
    manifest = CheckpointManifest(
        **asdict(progress),
        sha256=sha256,
        sessions=history.sessions_until(progress.step),
        contents=history.contents,
    )
    atomic_write(checkpoint / MANIFEST, json.dumps(manifest.model_dump(mode="json"), indent=1))


def read_progress(checkpoint: Path) -> Progress:
    """How far a checkpoint without a fault is."""
    manifest = _read(checkpoint)
    return Progress(**{one.name: getattr(manifest, one.name) for one in fields(Progress)})


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


def _read(checkpoint: Path) -> CheckpointManifest:
    return CheckpointManifest.model_validate_json((checkpoint / MANIFEST).read_bytes())
