"""One training process, started by `accelerate launch`; `python -m stages.train` does that.

The loop owns what must not depend on the hardware: the data order, the learning rate, the loss's normalisation, the
random numbers and the checkpoints. Accelerate owns the process group, the device and the wrapping.
"""

import math
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from stages.formats.entry import run_stage
from stages.formats.section import read_section
from stages.formats.tokens import TokenStore
from stages.train.checkpoints import Checkpoints, Progress
from stages.train.compile import should_compile
from stages.train.curves import Curves
from stages.train.evaluation import Evaluation
from stages.train.fingerprint import fingerprint
from stages.train.loop import Preempted, Trainer, train
from stages.train.loss import CausalLoss
from stages.train.model import build_model
from stages.train.optimizer import build_optimizers
from stages.train.packing import build_packing
from stages.train.params import TrainParams
from stages.train.results import write_results

TOKENS = Path("data/tokens")

EXIT_CONTINUE = 75
"""Asked to stop (SIGTERM), checkpoint saved: the same command goes on (EX_TEMPFAIL of sysexits.h)."""


def main() -> None:
    params = read_section("train", TrainParams)
    accelerator = Accelerator(mixed_precision="no")
    training, validation = TokenStore(TOKENS / "train"), TokenStore(TOKENS / "validation")
    index = build_packing(training, params.sequence_length, params.packing)
    micro_batch_size = int(os.environ.get("PARROTFLOW_MICRO_BATCH") or params.global_batch_size)

    eager = CausalLoss(build_model(params, training.manifest), params.precision)
    compiled = should_compile(params, eager.model, accelerator.device)
    model = accelerator.prepare(torch.compile(eager, dynamic=False) if compiled else eager)
    optimizers = build_optimizers(eager, params.optimizer)

    checkpoints = Checkpoints(fingerprint(params, [training, validation]), accelerator, params.checkpoints_kept)
    curves = Curves(checkpoints.folder / "curves")
    progress = Progress(step=0, training_loss=math.nan)
    if place := checkpoints.latest():
        progress = checkpoints.load(place, eager, optimizers)
        accelerator.print(f"continuing at step {progress.step} of {params.max_steps}, from {place}")
    if accelerator.is_main_process:
        curves.cut_after(progress.step)

    trainer = Trainer(params, accelerator, training, index, model, eager, optimizers, micro_batch_size)
    evaluation = Evaluation(params, accelerator, validation, eager, rows_at_once=micro_batch_size)
    try:
        progress = train(trainer, evaluation, checkpoints, curves, progress)
    except Preempted:
        accelerator.print("stopped on request, state saved; the same command goes on")
        sys.exit(EXIT_CONTINUE)

    held_out = evaluation.measure()
    if accelerator.is_main_process:
        write_results(trainer, progress, held_out, curves, compiled)
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    run_stage(main)
