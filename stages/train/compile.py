"""Whether to compile: an execution setting, `PARROTFLOW_COMPILE` = auto (default), on or off."""

import os
import shutil

import torch

from stages.formats.entry import UserError
from stages.train.params import TrainParams

VARIABLE = "PARROTFLOW_COMPILE"

REPAYS_FROM_FLOPS = {"cpu": 2e13, "cuda": 2e16}
"""Total work from which compilation repays its start-up (measured: 12-20 s for a GPT-2 of 4 layers on 2 cores)."""


def should_compile(params: TrainParams, flops_per_token: float, device: torch.device) -> bool:
    """Decided by the whole run's work, not by what remains of it: a run that continues compiles as it did before."""
    choice = os.environ.get(VARIABLE, "auto") or "auto"
    if choice not in ("auto", "on", "off"):
        raise UserError(f"{VARIABLE}={choice}: expected auto, on or off")
    compiler = device.type != "cpu" or any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++"))
    if choice == "on" and not compiler:
        raise UserError(f"{VARIABLE}=on: compiling for the CPU needs a C++ compiler (g++ or clang++); install one")
    if choice != "auto" or not compiler:
        return choice == "on"
    tokens = params.max_steps * params.global_batch_size * params.sequence_length
    return tokens * flops_per_token > REPAYS_FROM_FLOPS.get(device.type, float("inf"))
