"""What the hardware decides: the precision of matrix products, and whether to compile.

All of it by what the hardware is, never by timing, so that the same machine always decides alike. `PARROTFLOW_COMPILE`
(auto, the default, on or off) decides otherwise. The precision that `train.precision: auto` means replaces it in the
parameters before anything is built: the fingerprint, the reports and the provenance carry it.
"""

import os
import shutil
import sysconfig
from pathlib import Path

import torch
from torch.utils import deterministic

from stages.formats.revision.execution import Session
from stages.runtime.entry import UserError
from stages.train.data.batches import rows_before
from stages.train.params import TrainParams

COMPILE = "PARROTFLOW_COMPILE"

ONEDNN_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""oneDNN multiplies bf16 on CPUs; these variables keep it below an instruction set (its manual, "CPU Dispatcher
Control")."""

REPAYS_FROM_FLOPS = {"cpu bf16": 5e13, "cpu fp32": 1e14, "cuda bf16": 2e16, "cuda fp32": 2e16}
"""Total work from which compilation repays its start-up: 30 to 40 s on 2 cores with an empty compiler cache. With a
GPT-2 of 4 layers it then saves 0.08 s in a step of 1e11 in bf16 (AMX), 0.05 s in fp32 (AVX-512: 4,200 tokens/s eager,
4,450 compiled). Not measured on a GPU."""


def resolve_precision(params: TrainParams, device_type: str) -> TrainParams:
    """The parameters with `auto` replaced by what it means on a device (`cpu`, `cuda`, ...); a fixed value stays.

    Raises UserError where bf16 is fixed and the GPU has no such arithmetic. Every CPU has, many slowly.
    """
    fast = multiplies_bf16_fast(device_type)
    if params.precision == "bf16" and device_type == "cuda" and not fast:
        raise UserError(
            f"params.yaml: train.precision = bf16: {torch.cuda.get_device_name()} has no bf16 arithmetic; "
            "use auto or fp32"
        )
    if params.precision != "auto":
        return params
    return params.model_copy(update={"precision": "bf16" if fast else "fp32"})


def multiplies_bf16_fast(device_type: str) -> bool:
    """Whether matrix products in bf16 are faster than in fp32.

    CPUs: with AMX ten times as fast. With AVX-512's bf16 alone they are slower (GPT-2 of 4 layers, 2 cores: 2,700
    tokens/s against 4,200), with AVX2 fifty times slower. Other devices than CUDA's were not measured: fp32.
    """
    match device_type:
        case "cuda":
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        case "cpu":
            return _has_amx()
        case _:
            return False


def _has_amx() -> bool:
    limit = next((os.environ[name] for name in ONEDNN_LIMITS if os.environ.get(name)), "ALL").upper()
    return bool(torch.cpu.get_capabilities().get("amx_bf16")) and (limit in ("ALL", "DEFAULT") or "AMX" in limit)


def describe_precision(params: TrainParams, device_type: str) -> str:
    """The resolved precision, and where a fixed value is the slower one, that it is."""
    chosen = resolve_precision(params, device_type).precision
    faster = "bf16" if multiplies_bf16_fast(device_type) else "fp32"
    here = "GPU" if device_type == "cuda" else "CPU"
    slow = "" if chosen == faster else f" (slow: {faster} is faster on this {here}; train.precision: auto takes it)"
    return f"{chosen}{slow}"


def should_compile(params: TrainParams, flops_per_token: float, device: torch.device) -> bool:
    """Whether a run that starts afresh compiles: decided by the whole run's work."""
    choice, compiler = _compile_choice(), _has_compiler(device)
    if choice == "on" and not compiler:
        needed = "CPU needs a C++ compiler (g++ or clang++); install one"
        if device.type != "cpu":
            needed = "GPU needs a C compiler (gcc or clang) and Python's headers (python3-dev); install both"
        raise UserError(f"{COMPILE}=on: compiling for the {needed}")
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
    if not sessions or _compile_choice() != "auto" or sessions[-1].device_type != device.type:
        return afresh
    return sessions[-1].compiled and _has_compiler(device)


def _compile_choice() -> str:
    choice = os.environ.get(COMPILE, "auto") or "auto"
    if choice not in ("auto", "on", "off"):
        raise UserError(f"{COMPILE}={choice}: expected auto, on or off")
    return choice


def _has_compiler(device: torch.device) -> bool:
    """Whether there is what compiles for the device; triton, which compiles for GPUs, builds a C module of Python's."""
    if device.type == "cpu":
        return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++"))
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return has_headers and any(shutil.which(name) for name in (os.environ.get("CC", ""), "gcc", "clang"))


def repeat_bits(device: torch.device, asked_for: bool = False) -> None:
    """Make the same run give the same bits: compiled code on a CPU otherwise adds gradients in the order of threads.

    On GPUs the fast kernels add in the order of their blocks, so there it is done only if the parameters ask for
    deterministic sums; a kernel that has no such variant then ends the run with torch's own message.
    """
    if device.type == "cpu" or asked_for:
        # Read when cuBLAS is first used (its documentation, "Results reproducibility").
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # A search for bugs of others, at a cost in each step.
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
