"""Where a run starts: at its newest checkpoint that fits, or at step 0."""

import math
from typing import Any

from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.fingerprint import record_identity, why_afresh
from stages.train.checkpoint.manifest import Progress
from stages.train.model.loss import CausalLoss
from stages.train.optim.optimizer import Optimizers
from stages.train.params import TrainParams

POINTS = ("log_every_steps", "evaluate_every_steps")


def resume(
    checkpoints: Checkpoints, params: TrainParams, model: CausalLoss, optimizers: Optimizers, run: dict[str, Any]
) -> Progress:
    """Load the newest checkpoint that this run may continue, or start at step 0 and say why. Every process calls it."""
    refused: list[str] = []

    def fits(progress: Progress) -> bool:
        shared = checkpoints.shared_steps(progress.max_steps)
        # Points at other steps are only taken out again; those that were never measured cannot be added.
        finer = [f"train.{name}" for name in POINTS if getattr(params, name) % getattr(progress, name)]
        missing = [step for step in params.export_steps if step <= progress.step and not checkpoints.exported(step)]
        if progress.step > shared:
            refused.append(
                f"not from the checkpoints of the run of {progress.max_steps} steps: a run of {params.max_steps} has "
                f"the same learning rates up to step {shared}, and the earliest checkpoint is of step {progress.step} "
                "(train.milestone_every_steps keeps earlier ones)"
            )
        elif missing:
            refused.append(
                f"not from the checkpoint of step {progress.step}: the model of step {missing[0]} "
                "(train.export_steps) was not kept then"
            )
        elif finer:
            refused.append(
                f"not from the checkpoint of step {progress.step}: its curves lack points that {finer[0]} asks for; "
                f"a multiple of {getattr(progress, finer[0].removeprefix('train.'))} continues from it"
            )
        return progress.step <= shared and not missing and not finer

    path = checkpoints.latest(fits)
    is_main, printed = checkpoints.accelerator.is_main_process, checkpoints.accelerator.print
    if is_main:
        record_identity(checkpoints.folder, run)
    if path is None:
        reasons = refused[-1:] or [
            f"not from another run's checkpoints: {line}" for line in why_afresh(checkpoints.folder, run)
        ]
        for reason in reasons:
            printed(f"starting afresh, {reason}")
        if is_main:
            checkpoints.curves.restart()
        return Progress(0, math.nan, params.max_steps, params.log_every_steps, params.evaluate_every_steps)
    progress = checkpoints.load(path, model, optimizers)
    printed(f"continuing at step {progress.step} of {params.max_steps}, from {path}")
    if is_main:
        checkpoints.curves.restore(path, progress.step, params)
    return progress
