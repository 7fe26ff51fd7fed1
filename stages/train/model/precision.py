"""The precision of matrix products: what `train.precision: auto` means on a device.

bf16 where the hardware multiplies it fast, fp32 elsewhere. Decided by what the hardware is, never by timing, so that
the same machine always decides alike. The result replaces `auto` in the parameters before anything is built: the
fingerprint, the reports and the provenance carry the resolved value.
"""

import os

import torch

from stages.runtime.entry import UserError
from stages.train.params import TrainParams

ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""oneDNN multiplies bf16 on CPUs; these variables keep it below an instruction set (its manual, "CPU Dispatcher
Control")."""


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
    limit = next((os.environ[name] for name in ISA_LIMITS if os.environ.get(name)), "ALL").upper()
    return bool(torch.cpu.get_capabilities().get("amx_bf16")) and (limit in ("ALL", "DEFAULT") or "AMX" in limit)


def describe_precision(params: TrainParams, device_type: str) -> str:
    """The resolved precision, and where a fixed value is the slower one, that it is."""
    chosen = resolve_precision(params, device_type).precision
    faster = "bf16" if multiplies_bf16_fast(device_type) else "fp32"
    here = "GPU" if device_type == "cuda" else "CPU"
    slow = "" if chosen == faster else f" (slow: {faster} is faster on this {here}; train.precision: auto takes it)"
    return f"{chosen}{slow}"
