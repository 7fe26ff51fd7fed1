"""What a finished run leaves: the model folder, the metrics and the curves; and, apart from them, how fast it was."""

import shutil
from pathlib import Path

import torch

from stages.formats.model_folder import MODEL
from stages.formats.reports import write_json
from stages.runtime.atomic import atomic_folder
from stages.train.checkpoint.checkpoints import Checkpoints, Progress
from stages.train.loop import Trainer
from stages.train.model.export import save_model, whole_model
from stages.train.monitoring.throughput import processor_name
from stages.train.monitoring.validation import ValidationResult

TOKENIZER = Path("data/tokenizer")
METRICS = Path("reports/train.json")
CURVES = Path("reports/curves")
SPEED = Path("reports/train_speed.json")


def write_results(
    trainer: Trainer, progress: Progress, held_out: ValidationResult, checkpoints: Checkpoints, compiled: bool
) -> None:
    """Write all of it; the model last, since its folder stands for success. Every process calls this."""
    model = whole_model(trainer.eager, trainer.accelerator, trainer.params, trainer.store.manifest)
    if model is None:
        return
    write_json(METRICS, metrics(trainer, progress, held_out))
    write_json(SPEED, speed(trainer, compiled))
    with atomic_folder(CURVES) as folder:
        checkpoints.curves.copy_to(folder)
    with atomic_folder(MODEL) as folder:
        save_model(model, folder)
        for file in sorted(TOKENIZER.iterdir()):
            shutil.copyfile(file, folder / file.name)
        for step in trainer.params.export_steps:
            if (exported := checkpoints.export_place(step)).is_dir():
                shutil.copytree(exported, folder / exported.name)


def metrics(trainer: Trainer, progress: Progress, held_out: ValidationResult) -> dict[str, float]:
    """What was computed: the same on every machine up to rounding, the same bytes on the same machine."""
    params = trainer.params
    return {
        "steps": progress.step,
        "tokens": params.max_steps * params.global_batch_size * params.sequence_length,
        "parameters": trainer.eager.model.num_parameters(),
        "training_loss": round(progress.training_loss, 6),
        "validation_loss": round(held_out.loss, 6),
        "validation_bits_per_byte": round(held_out.bits_per_byte, 6),
    }


def speed(trainer: Trainer, compiled: bool) -> dict[str, float | int | str | bool]:
    """How it was computed: on which hardware, and how fast since the last start."""
    device, processes = trainer.accelerator.device, trainer.accelerator.num_processes
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else processor_name(),
        "processes": processes,
        "threads_per_process": torch.get_num_threads(),
        "micro_batch_size": trainer.micro_batch_size,
        "compiled": compiled,
    } | {name: round(value, 4) for name, value in trainer.clock.figures().items()}
