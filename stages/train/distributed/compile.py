"""Whether to compile: an execution setting, `PARROTFLOW_COMPILE` = auto (default), on or off."""

import os
import shutil

import torch

from stages.runtime.entry import UserError
from stages.train.params import TrainParams

VARIABLE = "PARROTFLOW_COMPILE"

REPAYS_FROM_FLOPS = {"cpu": 5e13, "cuda": 2e16}
"""Total work from which compilation repays its start-up. Measured on 2 cores with a GPT-2 of 4 layers: 30-40 s where
nothing lies in the compiler's cache, then 0.08 s less for a step of 1e11. Not measured on a GPU."""


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
