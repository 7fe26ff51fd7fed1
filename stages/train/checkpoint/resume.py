"""What a run of training is, and where it starts: at its newest checkpoint that fits, or at step 0.

Checkpoints of one fingerprint continue each other, and no others. It covers the parameters, the data, the tokenizer,
the libraries and the code of the stage (by its syntax, so that a comment does not throw away a night's work) without
`stages/runtime`, and nothing of the machine. Where the schedule's plateau does
not depend on how many steps follow (constant, wsd), the number of steps is left out: a run can be made longer. How
often points of the curves are written is left out too: a run can continue with fewer of them.

`PARROTFLOW_CONTINUE=FINGERPRINT` continues a training after a change of its code. Its weights then are those of no one
code, so this is never done unasked. The session that does it names the earlier run, in the record of the execution and
on the card.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stages.formats.tokens import TokenStore
from stages.runtime.atomic import atomic_folder, atomic_write, file_sha256
from stages.runtime.entry import UserError
from stages.runtime.section import flatten
from stages.runtime.stage_code import computing_sha256, pinned
from stages.train.checkpoint.checkpoints import CONTINUE, Checkpoints
from stages.train.checkpoint.manifest import IDENTITY, CheckpointManifest, TrainingProgress
from stages.train.checkpoint.mirror import Mirror
from stages.train.model.build import source_sha256
from stages.train.model.loss import CausalLoss
from stages.train.optim.optimizers import Optimizers
from stages.train.parallel import on_main
from stages.train.params import TrainParams

LIBRARIES = ("torch", "transformers", "accelerate", "numpy")
KEPT_OR_SHOWN = {"checkpoint_every_steps", "checkpoints_kept", "milestone_every_steps", "export_steps", "trackers"}
KEPT_OR_SHOWN |= {"log_every_steps", "evaluate_every_steps"}
"""Parameters that change what is kept or shown, not what is computed. Resuming makes sure that the curves are those of
an undisturbed run."""


def identity(params: TrainParams, stores: list[TokenStore]) -> dict[str, Any]:
    """Everything that the weights depend on, by name."""
    pins = pinned()
    values = params.model_dump(mode="json", exclude=KEPT_OR_SHOWN)
    if params.schedule.is_extensible:
        del values["max_steps"]
    if params.mixture is None:
        del values["mixture"]  # trainings of before there were mixtures do not name it
    start = {} if params.start_from is None else {"start_from": source_sha256(params.start_from)}
    return start | {
        "train": values,
        "data": {store.folder.as_posix(): file_sha256(store.folder / "manifest.json") for store in stores},
        "library": {name: pins[name][1] for name in LIBRARIES},
        "code": computing_sha256("stages.train"),
    }


def fingerprint(values: dict[str, Any]) -> str:
    """16 hex digits that name an identity."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def why_afresh(folder: Path, values: dict[str, Any], mirrored: Mapping[str, bytes]) -> list[str]:
    """Where other runs have checkpoints but this one has none: what differs, a line each.

    From the newest of them here, or from one of those in a mirror, by their identities, if less differs from it.
    """
    others = [path for path in folder.parent.glob(f"*/{IDENTITY}") if path.parent != folder]
    newest = max(others, key=lambda path: path.stat().st_mtime_ns, default=None)
    found = {newest.parent.name: changes_since(newest, values)} if newest else {}
    for name, identity in mirrored.items():
        found.setdefault(name, differences(identity, values, f"{name}/{IDENTITY} in the mirror"))
    if not found:
        return []
    nearest, changes = min(found.items(), key=lambda run: len(run[1]))
    keys = [change.split(":")[0] for change in changes]
    if keys == ["train.max_steps"]:
        changes.append("every step's learning rate depends on max_steps; schedules constant and wsd can be extended")
    if keys == ["train.precision"]:
        changes.append("auto is what this hardware multiplies fast; the other value in params.yaml continues that run")
    if keys == ["code"]:
        changes.append(f"where the change is none to the weights, {CONTINUE}={nearest} continues that run")
    return changes


def changes_since(recorded: Path, values: dict[str, Any]) -> list[str]:
    """What differs from the identity in a file, a line each."""
    return differences(recorded.read_bytes(), values, str(recorded))


def differences(recorded: bytes, values: dict[str, Any], name: str) -> list[str]:
    """What differs from an identity, a line each; `name` is that of its file."""
    try:
        before, now = flatten(json.loads(recorded)), flatten(json.loads(json.dumps(values)))
    except (ValueError, AttributeError):
        return [f"{name} is damaged"]  # it only serves messages
    return [
        f"{key}: {before.get(key, 'absent')} -> {now.get(key, 'absent')}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


@dataclass(frozen=True)
class Start:
    """Where a run starts."""

    progress: TrainingProgress
    checkpoint: Path | None = None
    """What it continues from; None at step 0."""
    continued_from: str | None = None
    """The fingerprint of the run with other code whose checkpoint it is."""


def resume(checkpoints: Checkpoints, model: CausalLoss, optimizers: Optimizers, run: dict[str, Any]) -> Start:
    """Load the newest checkpoint that this run may continue, or start at step 0 and say why. Every process calls it.

    Raises UserError where a run with other code is to be continued and has no checkpoint for it.
    """
    params, accelerator = checkpoints.params, checkpoints.accelerator
    refused: list[str] = []

    def fits(progress: CheckpointManifest, of: Checkpoints = checkpoints) -> bool:
        if reason := why_not(progress, checkpoints, of):
            refused.append(reason)
        return not reason

    path, earlier = checkpoints.latest(fits), earlier_run(checkpoints, run)
    found = earlier.latest(partial(fits, of=earlier)) if earlier else None
    if earlier and not found and not path:
        raise UserError(f"{CONTINUE}={earlier.folder.name}: {(refused or ['it has no intact checkpoint'])[-1]}")
    crossed = earlier if found is not None and (path is None or found.name > path.name) else None
    path = found if crossed else path
    if accelerator.is_main_process:
        atomic_write(checkpoints.folder / IDENTITY, json.dumps(run, indent=1, sort_keys=True))
    if path is None:
        mirrored = on_main(accelerator, checkpoints.mirror.identities)
        changes = why_afresh(checkpoints.folder, run, mirrored)
        others = [f"not from another run's checkpoints: {line}" for line in changes]
        for reason in refused[-1:] or others:
            accelerator.print(f"starting afresh, {reason}")
        if accelerator.is_main_process:
            checkpoints.curves.restart()
        return Start(TrainingProgress.of(params, 0, math.nan))
    progress = checkpoints.load(path, model, optimizers)
    accelerator.print(f"continuing at step {progress.step} of {params.max_steps}, from {path}")
    if crossed:
        accelerator.print(
            "the steps before were computed by other code, which the record of the training and the card say"
        )
        take_exports(crossed, checkpoints, progress.step)
    if accelerator.is_main_process:
        checkpoints.curves.restore(path, progress.step, params)
    return Start(progress, path, crossed.folder.name if crossed else None)


def why_not(progress: CheckpointManifest, own: Checkpoints, of: Checkpoints) -> str:
    """Why a run cannot continue from a checkpoint `of` another one or of its own; empty where it can."""
    params, shared = own.params, own.shared_steps(progress.max_steps)
    if progress.step > shared:
        return (
            f"not from the checkpoints of the run of {progress.max_steps} steps: a run of {params.max_steps} has "
            f"the same learning rates up to step {shared}, and the earliest checkpoint is of step {progress.step} "
            "(train.milestone_every_steps keeps earlier ones)"
        )
    this = f"not from the checkpoint of step {progress.step}"
    for step in params.exported_steps:
        if step <= progress.step and not of.has_export(step, progress):
            return f"{this}: the model of step {step} (train.export_steps) was not kept then"
    for name in ("log_every_steps", "evaluate_every_steps"):
        # Points at other steps are only taken out again; those that were never measured cannot be added.
        if getattr(params, name) % (kept := getattr(progress, name)):
            return f"{this}: its curves lack points that train.{name} asks for; a multiple of {kept} continues from it"
        # The last step always has a point; in a longer run, whose checkpoint this is, it need not have had one.
        if progress.step == params.max_steps != progress.max_steps and progress.step % kept:
            return f"{this}: its curves lack the last point, which a run of {progress.max_steps} steps does not have"
    return ""


def earlier_run(checkpoints: Checkpoints, run: dict[str, Any]) -> Checkpoints | None:
    """The checkpoints of the run that the variable names; None where it names none, or this one.

    Raises UserError where there is no such run here, or where more than the code differs. Every process calls this.
    """
    name = os.environ.get(CONTINUE, "")
    if name in ("", checkpoints.folder.name):
        return None
    folder = checkpoints.folder.parent / Path(name).name
    mirror = Mirror(folder.name)
    on_main(checkpoints.accelerator, lambda: _check_only_code_differs(folder, mirror, name, run))
    return Checkpoints(folder, checkpoints.accelerator, checkpoints.params, mirror)


def _check_only_code_differs(folder: Path, mirror: Mirror, name: str, run: dict[str, Any]) -> None:
    here = {path.parent.name: path.read_bytes() for path in folder.parent.glob(f"*/{IDENTITY}")}
    known = here if folder.name in here else mirror.identities() | here
    recorded = known.get(folder.name, b"")
    try:
        same = json.loads(recorded) | {"code": None} == json.loads(json.dumps(run)) | {"code": None}
    except (ValueError, TypeError):
        where = f"{folder.parent}{f' and {mirror.url}' if mirror.url else ''}"
        raise UserError(
            f"{CONTINUE}={name}: no such training in {where}; there are {', '.join(sorted(known)) or 'none'}"
        ) from None
    if not same:
        raise UserError(
            f"{CONTINUE}={name}: more than the code differs from that training "
            f"({'; '.join(differences(recorded, run, name))}); unset it to start afresh, or undo these changes"
        )
    if folder.name not in here:  # the checkpoint comes from the mirror, and is continued without it too
        atomic_write(folder / IDENTITY, recorded)


def take_exports(earlier: Checkpoints, checkpoints: Checkpoints, step: int) -> None:
    """Copy the models of `export_steps` up to `step`: this run does not compute them. Every process calls this."""

    def copy() -> None:
        for wanted in checkpoints.params.exported_steps:
            path = earlier.exported(wanted)
            if wanted <= step and path is not None:
                with atomic_folder(checkpoints.export_path(wanted)) as folder:
                    shutil.copytree(path, folder, dirs_exist_ok=True)

    on_main(checkpoints.accelerator, copy)
