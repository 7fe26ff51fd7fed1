"""What a finished run writes: the model folder, the metrics and the curves.

And, apart from them, how it was executed and how fast it was.
"""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from stages.formats.model_folder import MODEL, TOKENIZER, TRAINING_RUN, weights_sha256
from stages.formats.reports import CURVES, write_json
from stages.formats.revision.execution import TRAIN_SPEED, Execution
from stages.runtime.atomic import atomic_folder, file_sha256
from stages.runtime.entry import UserError
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.manifest import TrainingProgress
from stages.train.data.batches import rows_before
from stages.train.data.shares import SourceShares, shares_by_phase
from stages.train.loop import Trainer
from stages.train.model.build import full_model, save_model
from stages.train.monitoring.speed_records import remember_speed
from stages.train.monitoring.throughput import device_name
from stages.train.monitoring.uptime import Uptime
from stages.train.validation import ValidationResult

METRICS = Path("reports/train.json")


class TrainingReport(BaseModel):
    """What was computed: the same on every machine up to rounding, the same bytes on the same machine.

    All of it is of the whole run, across interruptions and over all processes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    parameters: int
    """As trained: the vocabulary is padded."""
    steps: int
    tokens: int
    """Trained on; a token that is read in two epochs counts twice."""
    model_flops: float
    """Floating-point operations of the model for these tokens, forward and backward, by `flops_per_token`. Held-out
    evaluation, the optimizer and what is computed again to save memory do not count."""
    training_loss: float
    """Nats per token, of the last step."""
    validation_loss: float
    """Nats per token, after the last step."""
    validation_bits_per_byte: float
    mixture: dict[str, SourceShares] | None = None
    """Under a mixture, what each source gave: in the whole run, and in each of its phases."""


def write_results(
    trainer: Trainer, progress: TrainingProgress, held_out: ValidationResult, checkpoints: Checkpoints, uptime: Uptime
) -> None:
    """Write all of it; the model last, since its folder means success. Every process calls this.

    Raises UserError where the model of one of `export_steps` is missing.
    """
    model = full_model(trainer.eager, trainer.accelerator, trainer.store.manifest)
    trainer.accelerator.wait_for_everyone()  # none exchanges anything after that: each may end while others still work
    if model is None:
        return
    exports = {step: checkpoints.exported(step) for step in trainer.params.exported_steps}
    if missing := [step for step, path in exports.items() if path is None]:
        raise UserError(
            f"train: the model of step {missing[0]} (train.export_steps) is missing in {checkpoints.folder}; "
            "delete that folder and run the same command again"
        )
    write_json(METRICS, training_report(trainer, progress, held_out).model_dump(exclude_none=True))
    with atomic_folder(CURVES) as folder:
        checkpoints.curves.copy_to(folder)
    with atomic_folder(MODEL) as folder:
        save_model(model, folder)
        for file in sorted(TOKENIZER.iterdir()):
            shutil.copyfile(file, folder / file.name)
        write_json(folder / TRAINING_RUN, order_of_data(trainer))
        for step, path in exports.items():
            if path is not None:
                shutil.copytree(path, folder / f"step-{step:08d}")
    weights, history = weights_sha256(MODEL), checkpoints.history
    facts = speed(trainer, uptime)
    write_json(TRAIN_SPEED, facts | {"weights_sha256": weights})
    useful, total = facts["effective_training_time_ratio"], timedelta(seconds=round(facts["total_seconds"]))
    if count := int(facts["interruptions"]):
        print(f"useful time (ETTR): {useful:.1%} of {total}, with {count} interruption{'s' * (count > 1)}", flush=True)
    Execution(
        weights_sha256=weights,
        fingerprint=checkpoints.folder.name,
        sessions=history.sessions_until(progress.step),
        spikes=history.spikes_until(progress.step),
        checkpoints=history.contents,
    ).write()
    remember_speed(facts)


def order_of_data(trainer: Trainer) -> dict[str, Any]:
    """What leads from a step back to its documents, and the precision: it goes wherever the weights go.

    Nothing that the weights do not depend on: the same weights leave the same folder.
    """
    names = {"seed", "max_steps", "global_batch_size", "batch_doublings", "sequence_length", "packing", "precision"}
    tokens = {"tokens_sha256": file_sha256(trainer.store.folder / "manifest.json")}
    names |= {"mixture"} if trainer.params.mixture else set()
    return trainer.params.model_dump(include=names) | tokens


def training_report(trainer: Trainer, progress: TrainingProgress, held_out: ValidationResult) -> TrainingReport:
    """The numbers of a finished run."""
    params = trainer.params
    tokens = rows_before(params, params.max_steps) * params.sequence_length
    return TrainingReport(
        parameters=trainer.eager.model.num_parameters(),
        steps=progress.step,
        tokens=tokens,
        model_flops=float(trainer.throughput.flops_per_token * tokens),
        training_loss=round(progress.training_loss, 6),
        validation_loss=round(held_out.loss, 6),
        validation_bits_per_byte=round(held_out.bits_per_byte, 6),
        mixture=shares_by_phase(trainer.order) or None,
    )


def speed(trainer: Trainer, uptime: Uptime) -> dict[str, Any]:
    """How it was computed: on which hardware, how fast since the last start, and how much time of all was useful."""
    throughput = trainer.throughput
    return {
        "device": device_name(trainer.accelerator.device),
        "processes": trainer.accelerator.num_processes,
        "threads_per_process": torch.get_num_threads(),
        "micro_batch_size": trainer.micro_batch_size,
        "precision": trainer.params.precision,
        "compiled": trainer.compiled,
        "flops_per_token": throughput.flops_per_token,
        "peak_flops": throughput.peak_flops,
        "model_flops_utilisation": None,
    } | {name: round(value, 4) for name, value in (throughput.metrics() | uptime.metrics(throughput)).items()}
