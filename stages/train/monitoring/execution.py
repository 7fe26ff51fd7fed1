"""What a start of the trainer runs on: everything besides parameters, code and data that can change a bit.

Never the names of machines or users, paths or secrets: of the environment only variables that are known to act on the
arithmetic are taken, and of those no value that could be a path.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

import torch

from stages.formats.revision.execution import Session
from stages.formats.revision.wheels import wheel_digest
from stages.train.data.batches import batch_size
from stages.train.launcher import LAUNCH_SETTINGS
from stages.train.loop import Trainer
from stages.train.monitoring.throughput import device_name
from stages.train.parallel import uses_fsdp

VECTOR_INSTRUCTIONS = ("sse", "ssse", "avx", "fma", "f16c", "amx", "neon", "asimd", "sve", "sme", "bf16", "fp16", "dot")
"""How the names of flags begin that say how a CPU multiplies."""

IMPORTED = ("torch", "transformers", "accelerate", "numpy", "safetensors")

ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Keep oneDNN, torch and MKL below an instruction set."""

COMPUTING = re.compile(
    "PARROTFLOW_COMPILE|PARROTFLOW_MICRO_BATCH|NVIDIA_TF32_OVERRIDE|"
    "(OMP|GOMP|KMP|MKL|ONEDNN|DNNL|ATEN|TORCH|PYTORCH|TORCHINDUCTOR|TORCHDYNAMO|CUBLAS|CUDNN|NCCL)_.*"
)
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")

PRIVATE = re.compile("DIR|PATH|FILE|HOST|ADDR|IFNAME|USER|TOKEN|SECRET|PASSWORD|KEY|CACHE")
"""What the names of variables hold that are about places, people or secrets."""
HARMLESS = re.compile(r"[\w.,:;=+-]{1,200}")
"""A value that is no path and no address with a password."""


def describe_session(trainer: Trainer, first_step: int, continued_from: str | None = None) -> Session:
    """The session of this process, from `first_step` (counted from 1) on; until it is cut, to the run's last step.

    Where machines differ, it describes that of the main process.
    """
    params, processes, device = trainer.params, trainer.accelerator.num_processes, trainer.accelerator.device
    own_rows = batch_size(params, params.max_steps - 1) // processes
    distributed = "fsdp2" if uses_fsdp() else "ddp" if processes > 1 else "none"
    return Session(
        first_step=first_step,
        last_step=params.max_steps,
        device=device_name(device),
        device_type=device.type,
        cpu_flags=vector_flags(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        isa_limits=limits(os.environ),
        processes=processes,
        machines=int(os.environ.get("GROUP_WORLD_SIZE") or 1),  # torchrun's
        threads_per_process=torch.get_num_threads(),
        precision=params.precision,
        compiled=trainer.compiled,
        micro_batch_size=trainer.micro_batch_size,
        gradient_accumulation_steps=-(-own_rows // trainer.micro_batch_size),
        distributed=distributed,
        environment=computing_variables(os.environ),
        launch=os.environ.get(LAUNCH_SETTINGS),
        versions=imported_versions(trainer.compiled),
        continued_from=continued_from,
        wheels=installed_wheels(),
    )


def vector_flags() -> list[str]:
    """The CPU's vector instructions, sorted, as torch names them: avx2, avx512_f, amx_bf16, neon, sve."""
    capabilities = torch.cpu.get_capabilities()
    return sorted(name for name, has in capabilities.items() if has is True and name.startswith(VECTOR_INSTRUCTIONS))


def imported_versions(compiled: bool) -> dict[str, str]:
    """The versions that this process runs, with their build tags; the C++ compiler's only where it is used."""
    versions = {name: str(sys.modules[name].__version__) for name in IMPORTED if name in sys.modules}
    versions |= {"python": platform.python_version(), "libc": " ".join(platform.libc_ver())}
    if torch.cuda.is_available():
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        versions |= {"cuda": str(torch.version.cuda), "cudnn": str(cudnn), "nccl": ".".join(map(str, nccl))}
        versions |= {"gpu driver": _driver_version(), "tf32": "on" if torch.backends.cuda.matmul.allow_tf32 else "off"}
    if compiled and "triton" in sys.modules:
        versions["triton"] = str(sys.modules["triton"].__version__)
    compiler = shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")
    if compiled and compiler:
        asked = subprocess.run([compiler, "-dumpfullversion"], check=False, capture_output=True, text=True)
        versions["c++"] = asked.stdout.strip()
    return versions


def _driver_version() -> str:
    """The kernel module's; empty where it does not say."""
    said = NVIDIA_DRIVER.read_text(encoding="utf-8") if NVIDIA_DRIVER.exists() else ""
    found = re.search(r"Kernel Module.*?(\d+\.\d+(\.\d+)?)", said)
    return found[1] if found else ""


def installed_wheels() -> dict[str, str]:
    """Which wheels the libraries were installed from, of those whose installation lists its files."""
    digests = {name: wheel_digest(distribution(name)) for name in IMPORTED if name in sys.modules}
    return {name: digest for name, digest in digests.items() if digest}


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
