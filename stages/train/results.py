"""What a finished run leaves: the model folder, the metrics and the curves; and, apart from them, how fast it was."""

import platform
from pathlib import Path

import torch

from stages.formats.atomic import whole_folder
from stages.formats.reports import write_json
from stages.train.checkpoints import Progress
from stages.train.curves import Curves
from stages.train.evaluation import HeldOut
from stages.train.loop import Trainer
from stages.train.model import export_model, flops_per_token
from stages.train.speed import peak_flops

MODEL = Path("model")
TOKENIZER = Path("data/tokenizer")
METRICS = Path("reports/train.json")
CURVES = Path("reports/curves")
SPEED = Path("reports/train_speed.json")


def write_results(trainer: Trainer, progress: Progress, held_out: HeldOut, curves: Curves, compiled: bool) -> None:
    """Write all of it; the model last, since its folder stands for success."""
    write_json(METRICS, metrics(trainer, progress, held_out))
    write_json(SPEED, speed(trainer, compiled))
    with whole_folder(CURVES) as folder:
        curves.copy_to(folder)
    with whole_folder(MODEL) as folder:
        export_model(trainer.eager.model, TOKENIZER, trainer.store.manifest.vocab_size, folder)


def metrics(trainer: Trainer, progress: Progress, held_out: HeldOut) -> dict[str, float]:
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
    clock, device = trainer.clock, trainer.accelerator.device
    achieved = clock.tokens_per_second * flops_per_token(trainer.eager.model, trainer.params.sequence_length)
    peak = peak_flops(device) * trainer.accelerator.num_processes
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "processes": trainer.accelerator.num_processes,
        "threads_per_process": torch.get_num_threads(),
        "compiled": compiled,
        "seconds": round(clock.seconds, 1),
        "tokens_per_second": round(clock.tokens_per_second),
        "model_flops_utilisation": round(achieved / peak, 4),
        "data_seconds": round(clock.data_seconds, 2),
        "evaluation_seconds": round(clock.evaluation_seconds, 2),
        "checkpoint_seconds": round(clock.checkpoint_seconds, 2),
    }
