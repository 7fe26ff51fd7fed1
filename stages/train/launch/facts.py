"""Which environment variables act on the arithmetic of a training."""

import re
from collections.abc import Mapping

ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Keep oneDNN, torch and MKL below an instruction set."""

COMPUTING = re.compile(
    "PARROTFLOW_COMPILE|PARROTFLOW_MICRO_BATCH|NVIDIA_TF32_OVERRIDE|"
    "(OMP|GOMP|KMP|MKL|ONEDNN|DNNL|ATEN|TORCH|PYTORCH|TORCHINDUCTOR|TORCHDYNAMO|CUBLAS|CUDNN|NCCL)_.*"
)
PRIVATE = re.compile("DIR|PATH|FILE|HOST|ADDR|IFNAME|USER|TOKEN|SECRET|PASSWORD|KEY|CACHE")
"""What the names of variables hold that are about places, people or secrets."""
HARMLESS = re.compile(r"[\w.,:;=+-]{1,200}")
"""A value that is no path and no address with a password."""


def is_computing(name: str) -> bool:
    """Whether a variable can change the computation."""
    return bool(COMPUTING.fullmatch(name)) and not PRIVATE.search(name)


def limits(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of `ISA_LIMITS` that are set."""
    return {name: environment[name] for name in ISA_LIMITS if environment.get(name)}


def computing_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The other variables that can change the computation; never a path, a name or a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if is_computing(name) and name not in ISA_LIMITS and HARMLESS.fullmatch(value)
    }
