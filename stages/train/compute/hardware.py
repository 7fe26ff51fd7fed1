"""Choices that depend on the hardware: the precision of matrix products, compilation, the size of micro-batches.

They depend on the kind of hardware, never on timing, so the same machine always chooses the same. `PARROTFLOW_COMPILE`
(auto, the default, on or off) overrides compilation, and `PARROTFLOW_MICRO_BATCH` the micro-batch size. A run keeps the
precision that `train.precision: auto` resolved to at its first start.
"""

import os
import shutil
import sysconfig
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils import deterministic

from stages.runtime.errors import UserError, whole_number
from stages.train.compute.gpu_memory import fitting_micro_batch_size
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.optim.settings import Precision
from stages.train.compute.params import ComputingParams

COMPILE = "PARROTFLOW_COMPILE"

ONEDNN_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables that limit the instruction set of oneDNN, which multiplies bf16 on CPUs (its manual, "CPU Dispatcher
Control")."""

REPAYS_FROM_FLOPS = 2e16
"""Total work of a run from which compilation pays off on a GPU: on an H200 GPT-2 124M compiles in 26 s, and 1e17 FLOP
then take 233 instead of 369 s. On a CPU it saves a few percent of a long run, so it is off by default."""


def resolve_precision(asked: Precision, device_type: str, asked_by: str = "params.yaml: train.precision") -> Precision:
    """Resolve `auto` for a device (`cpu`, `cuda`, ...); a fixed precision is returned unchanged.

    Raises UserError, naming `asked_by`, if bf16 is fixed and the GPU has no bf16 arithmetic. Every CPU has it, many of
    them slow.
    """
    fast = multiplies_bf16_fast(device_type)
    if asked == "bf16" and device_type == "cuda" and not fast:
        raise UserError(
            f"{asked_by} = bf16: {torch.cuda.get_device_name()} has no bf16 arithmetic; use fp32, or a GPU that has it"
        )
    if asked != "auto":
        return asked
    return "bf16" if fast else "fp32"


def multiplies_bf16_fast(device_type: str) -> bool:
    """True if matrix products in bf16 are faster than in fp32.

    On CPUs with AMX they are ten times as fast. With AVX-512's bf16 alone they are slower (GPT-2 of 4 layers, 2 cores:
    2,700 tokens/s against 4,200), with AVX2 fifty times slower. Other devices were not measured and use fp32.
    """
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    limit = next((os.environ[name] for name in ONEDNN_LIMITS if os.environ.get(name)), "ALL").upper()
    has_amx = bool(torch.cpu.get_capabilities().get("amx_bf16"))
    return device_type == "cpu" and has_amx and (limit in ("ALL", "DEFAULT") or "AMX" in limit)


def should_compile(params: ComputingParams, flops_per_token: float, device: torch.device) -> bool:
    """True if the model is compiled, which depends on the total work of the run.

    Raises UserError if compilation is forced and there is no compiler, or it would fail.
    """
    choice, compiler = _compile_choice(), _has_compiler(device)
    if choice == "on" and not compiler:
        needed = "CPU needs a C++ compiler (g++ or clang++); install one"
        if device.type != "cpu":
            needed = "GPU needs a C compiler (gcc or clang) and Python's headers (python3-dev); install both"
        raise UserError(f"{COMPILE}=on: compiling for the {needed}")
    if choice == "on" and device.type == "cpu" and " " in torch.__file__:  # torch passes it to the linker unquoted
        folder = Path(torch.__file__).parent
        raise UserError(f"{COMPILE}=on: torch cannot compile for the CPU from a path with a space ({folder}); move it")
    if choice != "auto" or not compiler:
        return choice == "on"
    return device.type == "cuda" and params.tokens * flops_per_token > REPAYS_FROM_FLOPS


def _compile_choice() -> str:
    choice = os.environ.get(COMPILE, "auto") or "auto"
    if choice not in ("auto", "on", "off"):
        raise UserError(f"{COMPILE}={choice}: expected auto, on or off")
    return choice


def _has_compiler(device: torch.device) -> bool:
    """True if a compiler for the device is installed. triton, which compiles for GPUs, builds a C module."""
    if device.type == "cpu":
        return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++"))
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return has_headers and any(shutil.which(name) for name in (os.environ.get("CC", ""), "gcc", "clang"))


def set_determinism(device: torch.device, asked_for: bool = False) -> None:
    """Use deterministic algorithms on CPUs, where compiled code would add gradients in the order of threads.

    On GPUs they are slower, so they are used only if `asked_for`; an operation without a deterministic kernel then ends
    the run with torch's own message.
    """
    if device.type == "cpu" or asked_for:
        # Read when cuBLAS is first used (its documentation, "Results reproducibility").
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # This only helps to find bugs, and costs time in each step.
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


MICRO_BATCH = "PARROTFLOW_MICRO_BATCH"

CPU_MICRO_BATCH_TOKENS = 8192
"""More tokens at a time are not faster on a CPU and cost memory."""


def micro_batch_size(params: ComputingParams, accelerator: Accelerator, model: CausalLoss) -> int:
    """Sequences per forward pass in each process; at most its share of a step. Every process calls this."""
    share: int = params.global_batch_size // accelerator.num_processes
    given = given_micro_batch_size(params, accelerator.device.type, share)
    return fitting_micro_batch_size(params, accelerator, model, share) if given is None else given


def given_micro_batch_size(params: ComputingParams, device_type: str, share: int) -> int | None:
    """Sequences per forward pass, at most `share` (a process's part of a step); None if trials on the GPU decide."""
    if params.deterministic_micro_batch_size is not None:
        return params.deterministic_micro_batch_size
    if (given := whole_number(MICRO_BATCH)) is not None:
        return min(given, share)
    return None if device_type == "cuda" else min(share, max(1, CPU_MICRO_BATCH_TOKENS // params.sequence_length))
