"""Where a run starts: at its own newest checkpoint, at the checkpoint in `train.start_from`, or at step 0.

A longer run, or one after a change of `compute/`, is another run and needs `start_from` to use a checkpoint.
"""

import json
import math
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.runtime.atomic import atomic_write
from stages.runtime.errors import UserError
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.identity import check_start, identity_changes
from stages.train.checkpoint.manifest import IDENTITY, TrainingProgress, fault, read_manifest
from stages.train.compute.hardware import resolve_precision
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.optim.build import Optimizers
from stages.train.compute.optim.settings import Precision
from stages.train.compute.processes import on_main


def precision_of_run(latest: Path | None, asked: Precision, device_type: str) -> Precision:
    """The precision of a run: that of `latest`, its newest checkpoint, or `asked` resolved at its first start.

    Raises UserError if the run began on other hardware and cannot continue on this.
    """
    if latest is None:
        return resolve_precision(asked, device_type)
    began = read_manifest(latest).sessions[0].precision
    if asked == "auto" and began != resolve_precision(asked, device_type):
        print(f"note: this run began in {began} and continues in it", flush=True)
    return resolve_precision(began, device_type, f"{latest}: its precision")


def resume(
    checkpoints: Checkpoints, latest: Path | None, model: CausalLoss, optimizers: Optimizers, run: dict[str, Any]
) -> TrainingProgress:
    """Load `latest`, the run's newest checkpoint, or that of `start_from`; without either, say why it starts afresh.

    Held-out curves of a checkpoint are dropped if they were measured on other tokens. Every process calls this.

    Raises UserError if the checkpoint of `start_from` is damaged, or of another model or optimizer.
    """
    params, accelerator = checkpoints.params, checkpoints.accelerator
    if accelerator.is_main_process:
        atomic_write(checkpoints.folder / IDENTITY, json.dumps(run, indent=1, sort_keys=True))
    path = latest or params.start_checkpoint
    if path is None:
        if reason := why_afresh(checkpoints.folder, run):
            accelerator.print(f"starting at step 0: {reason}")
        if accelerator.is_main_process:
            checkpoints.curves.restart()
        return TrainingProgress(step=0, training_loss=math.nan)
    if latest is None and (problem := on_main(accelerator, lambda: fault(path))):
        raise UserError(f"params.yaml: train.start_from = '{path}': {problem}")
    manifest = checkpoints.load(path, model, optimizers)
    if accelerator.is_main_process:
        checkpoints.curves.restore(path, with_held_out=manifest.held_out == checkpoints.history.held_out)
    if latest:
        checkpoints.history = replace(checkpoints.history, sessions=manifest.sessions, contents=manifest.contents)
    accelerator.print(f"continuing at step {manifest.step} of {params.max_steps}, from {path}")
    return TrainingProgress(step=manifest.step, training_loss=manifest.training_loss)


def why_afresh(folder: Path, values: dict[str, Any]) -> str:
    """How this run differs from the newest other run here, and how to start from that; empty if there is none."""
    others = [path for path in folder.parent.glob(f"*/{IDENTITY}") if path.parent != folder]
    newest = max(others, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return ""
    last = max(newest.parent.glob("step-*"), default=None)
    reason = f"this is another run than {newest.parent} ({'; '.join(identity_changes(newest, values))})"
    if last is not None:
        with suppress(UserError):
            check_start(last, values["train"] | {"max_steps": sys.maxsize})
            reason += f"; to continue from its weights and optimizer state set train.start_from: {last}"
    return reason
