"""Whether to compile: an execution setting, `PARROTFLOW_COMPILE` = auto (default), on or off."""

import os
import shutil

import torch

from stages.formats.revision.execution import Session
from stages.runtime.entry import UserError
from stages.train.data.batches import rows_before
from stages.train.params import TrainParams

VARIABLE = "PARROTFLOW_COMPILE"

REPAYS_FROM_FLOPS = {"cpu bf16": 5e13, "cpu fp32": 1e14, "cuda bf16": 2e16, "cuda fp32": 2e16}
"""Total work from which compilation repays its start-up: 30 to 40 s on 2 cores with an empty compiler cache. With a
GPT-2 of 4 layers it then saves 0.08 s in a step of 1e11 in bf16 (AMX), 0.05 s in fp32 (AVX-512: 4,200 tokens/s eager,
4,450 compiled). Not measured on a GPU."""


def should_compile(params: TrainParams, flops_per_token: float, device: torch.device) -> bool:
    """Whether a run that starts afresh compiles: decided by the whole run's work."""
    choice, compiler = _choice(), _has_compiler(device)
    if choice == "on" and not compiler:
        raise UserError(f"{VARIABLE}=on: compiling for the CPU needs a C++ compiler (g++ or clang++); install one")
    if choice != "auto" or not compiler:
        return choice == "on"
    tokens = rows_before(params, params.max_steps) * params.sequence_length
    batch_sizes = 1 + len(params.batch_doublings)  # each is compiled
    repays = REPAYS_FROM_FLOPS.get(f"{device.type} {params.precision}", float("inf"))
    return tokens * flops_per_token > batch_sizes * repays


def stays_compiled(afresh: bool, sessions: list[Session], device: torch.device) -> bool:
    """Whether a run compiles that continues after `sessions`: left to itself, as the last of them did.

    `afresh` is what `should_compile` says. It would change where the run is made longer, and compiled code has other
    last bits: then no one setting repeats the run. On another kind of device the bits are others anyway.
    """
    if not sessions or _choice() != "auto" or sessions[-1].device_type != device.type:
        return afresh
    return sessions[-1].compiled and _has_compiler(device)


def _choice() -> str:
    choice = os.environ.get(VARIABLE, "auto") or "auto"
    if choice not in ("auto", "on", "off"):
        raise UserError(f"{VARIABLE}={choice}: expected auto, on or off")
    return choice


def _has_compiler(device: torch.device) -> bool:
    return device.type != "cpu" or any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++"))
