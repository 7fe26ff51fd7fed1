"""What a run of training is: checkpoints of one fingerprint continue each other, and no others.

It covers the parameters, the data, the tokenizer, the libraries and the code of a worker (`stages.runtime.code`, so
that a comment or a docstring does not throw away a night's work) without what only launches and shows a run, and
nothing of the machine. Where the schedule's plateau does not depend on how many steps follow (constant, wsd), the
number of steps is left out: a run can be made longer. How often points of the curves are written is left out too: a run
can continue with fewer of them.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from stages.formats.tokens import TokenStore
from stages.runtime.atomic import file_sha256
from stages.runtime.code import ROOT, code_sha256
from stages.runtime.section import flatten
from stages.runtime.stage_code import pinned
from stages.train.model.source import source_sha256
from stages.train.params import TrainParams

LIBRARIES = ("torch", "transformers", "accelerate", "numpy")
WORKER = "stages.train.worker"
IDENTITY = "identity.json"
"""In the folder of a run's checkpoints: what they belong to."""

KEPT_OR_SHOWN = {"checkpoint_every_steps", "checkpoints_kept", "milestone_every_steps", "export_steps", "trackers"}
KEPT_OR_SHOWN |= {"log_every_steps", "evaluate_every_steps", "evaluate_tasks"}
"""Parameters that change what is kept or shown, not what is computed. Resuming makes sure that the curves are those of
an undisturbed run."""


WITHOUT_NUMBERS = ("stages/train/launch/", "stages/train/monitoring/", "stages/formats/reports.py")
"""Code of a worker that starts, shows and records a run, and computes nothing of it."""

CONTINUE = "PARROTFLOW_CONTINUE"
"""Names the run that is to be continued though the code has changed."""


def training_code(root: Path = ROOT) -> str:
    """The sha256 of the code that the weights depend on."""
    return code_sha256(WORKER, root, WITHOUT_NUMBERS)


def identity(params: TrainParams, stores: list[TokenStore]) -> dict[str, Any]:
    """Everything that the weights depend on, by name."""
    pins = pinned()
    values = params.model_dump(mode="json", exclude=KEPT_OR_SHOWN)
    if params.schedule.is_extensible:
        del values["max_steps"]
    if not params.spikes.skip:
        del values["spikes"]  # only looked for
    if params.mixture is None:
        del values["mixture"]  # trainings of before there were mixtures do not name it
    start = {} if params.start_from is None else {"start_from": source_sha256(params.start_from)}
    return start | {
        "train": values,
        "data": {store.folder.as_posix(): file_sha256(store.folder / "manifest.json") for store in stores},
        "library": {name: pins[name][1] for name in LIBRARIES},
        "code": training_code(),
    }


def fingerprint(values: dict[str, Any]) -> str:
    """16 hex digits that name an identity."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def why_afresh(folder: Path, values: dict[str, Any]) -> list[str]:
    """Where other runs have checkpoints but this one has none: what differs from the newest of them, a line each."""
    others = [path for path in folder.parent.glob(f"*/{IDENTITY}") if path.parent != folder]
    if not others:
        return []
    newest = max(others, key=lambda path: path.stat().st_mtime_ns)
    changes = changes_since(newest, values)
    if [change.split(":")[0] for change in changes] == ["train.max_steps"]:
        changes.append("every step's learning rate depends on max_steps; schedules constant and wsd can be extended")
    if [change.split(":")[0] for change in changes] == ["code"]:
        changes.append(f"where the change is none to the weights, {CONTINUE}={newest.parent.name} continues that run")
    return changes


def changes_since(recorded: Path, values: dict[str, Any]) -> list[str]:
    """What differs from the identity in a file, a line each."""
    try:
        before, now = flatten(json.loads(recorded.read_bytes())), flatten(json.loads(json.dumps(values)))
    except (ValueError, AttributeError):
        return [f"{recorded} is damaged"]  # it only serves messages
    return [
        f"{key}: {before.get(key, 'absent')} -> {now.get(key, 'absent')}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
