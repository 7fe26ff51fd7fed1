"""How a training was executed: `record/execution.json` of a revision.

Parameters say what is computed; this says with what: devices, processes, threads, libraries. If these are the same too,
the same parameters, code and data give the same bits. Training writes it to `reports/train_execution.json`.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel

from stages.formats.reports import REPORTS, Report

TRAIN_REPORT = REPORTS / "train.json"
TRAIN_EXECUTION = REPORTS / "train_execution.json"
TRAIN_SPEED = REPORTS / "train_speed.json"

ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Variables that keep oneDNN, torch and MKL below an instruction set."""

COMPUTING = re.compile(
    "PARROTFLOW_COMPILE|PARROTFLOW_MICRO_BATCH|NVIDIA_TF32_OVERRIDE|"
    "(OMP|GOMP|KMP|MKL|ONEDNN|DNNL|ATEN|TORCH|PYTORCH|TORCHINDUCTOR|TORCHDYNAMO|CUBLAS|CUDNN|NCCL)_.*"
)
"""Names of variables that can change the computation."""

PRIVATE_VARIABLES = re.compile("DIR|PATH|FILE|HOST|ADDR|IFNAME|USER|TOKEN|SECRET|PASSWORD|KEY|CACHE")
"""Parts of the names of variables that hold paths, people or secrets."""

HARMLESS = re.compile(r"[\w.,:;=+-]{1,200}")
"""A value that is neither a path nor a URL with a password."""

OTHERWISE_RECORDED = {"OMP_NUM_THREADS", "PARROTFLOW_COMPILE", "PARROTFLOW_MICRO_BATCH"}
"""Variables whose effect is a field of its own in a session."""


class Session(BaseModel, frozen=True):
    """One start of the trainer, with what it ran on. No paths, no names of machines, no tokens."""

    first_step: int
    """The first optimizer step that this session computed, counted from 1."""
    last_step: int
    """The last one that counts: steps after the checkpoint from which the next session resumed are discarded."""
    device: str
    """The name of the processor or GPU."""
    device_type: str
    """As torch names it: cpu, cuda."""
    cpu_flags: list[str]
    """The processor's vector instructions, sorted: avx2, avx512f, amx_bf16, neon, sve."""
    cpu_capability: str
    """The instruction set of torch's own kernels (`torch.backends.cpu.get_cpu_capability`)."""
    isa_limits: dict[str, str]
    """Limits on the instructions of oneDNN, MKL and torch that were set: variable -> value."""
    processes: int
    machines: int
    threads_per_process: int
    precision: Literal["bf16", "fp32"]
    compiled: bool
    micro_batch_size: int
    gradient_accumulation_steps: int
    """Micro-batches of a step in each process."""
    distributed: Literal["none", "ddp", "fsdp2"]
    environment: dict[str, str]
    """Variables that were set and can change the computation (PARROTFLOW_*, OMP_*, MKL_*, TORCH*, ...)."""
    launch: str | None
    """The content of the launch preset; None if none was used."""
    versions: dict[str, str]
    """Library -> the version that was imported, with its build tag (2.13.0+cpu); and python."""


class Execution(Report, extra="ignore"):
    """How the training of some weights was executed."""

    path: ClassVar[Path] = TRAIN_EXECUTION
    stage: ClassVar[str] = "train"

    weights_sha256: str
    """Hash of the weights that these sessions made (`model_folder.weights_sha256`)."""
    fingerprint: str
    """Fingerprint of the run, as its checkpoints have it."""
    sessions: list[Session]
    """In order; more than one if the training was stopped and continued."""
    checkpoints: dict[int, str]
    """Step of a checkpoint -> sha256 of its content, the same for any number of data-parallel processes."""


def is_computing(name: str) -> bool:
    """True if a variable can change the computation."""
    return bool(COMPUTING.fullmatch(name)) and not PRIVATE_VARIABLES.search(name)


def limits(environment: Mapping[str, str]) -> dict[str, str]:
    """The `ISA_LIMITS` that are set."""
    return {name: environment[name] for name in ISA_LIMITS if environment.get(name)}


def computing_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The other variables that can change the computation; never a path, a name or a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if is_computing(name) and name not in ISA_LIMITS and HARMLESS.fullmatch(value)
    }


def recorded_settings(session: Session) -> dict[str, str]:
    """The environment variables with which a training computes as in a session. A record can set no others."""
    return {
        **computing_variables(session.environment),
        **limits(session.isa_limits),
        "OMP_NUM_THREADS": str(session.threads_per_process),
        "PARROTFLOW_COMPILE": "on" if session.compiled else "off",
    }


def differing_facts(recorded: Session, here: Session) -> Iterator[tuple[str, str, str]]:
    """The facts in which two executions differ, in the order of their names, each with both values.

    A fact is a field of `Session`, or one entry of it, such as `versions.torch`.
    Of the processor's instructions only those that one of the two lacks are listed. The launch preset is left out: its
    effect is the number of processes.
    """
    before, now = (_facts(one) for one in (recorded, here))
    flags = set(recorded.cpu_flags) ^ set(here.cpu_flags)
    for values, session in ((before, recorded), (now, here)):
        values["cpu_flags"] = " ".join(sorted(flags & set(session.cpu_flags)))
    for fact in sorted(before.keys() | now.keys()):
        if before.get(fact) != now.get(fact):
            yield fact, _shown(before.get(fact)), _shown(now.get(fact))


def _facts(session: Session) -> dict[str, object]:
    facts = session.model_dump(exclude={"first_step", "last_step", "launch"})
    for name in ("versions", "environment", "isa_limits"):
        entries = facts.pop(name)
        facts |= {f"{name}.{key}": value for key, value in entries.items() if key not in OTHERWISE_RECORDED}
    return facts


def _shown(value: object) -> str:
    return "none" if value in (None, "") else str(value)
