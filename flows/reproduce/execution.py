"""The recorded execution of the training -> the environment of this one, as far as this machine has what it needs."""

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from flows.reproduce import ReproduceOptions
from flows.reproduce.commands import run_python, without_secrets
from flows.reproduce.environment import Interpreter, Machine
from flows.reproduce.revision import RecordedRevision
from stages.formats.model_folder import CHECKPOINTS
from stages.formats.revision.execution import Session, recorded_settings
from stages.formats.revision.provenance import EXECUTION
from stages.runtime.atomic import atomic_write
from stages.runtime.errors import STATE_DIR, UserError

LAUNCH = "launch.yaml"

ISA_LEVELS = (
    ("AVX512_CORE_AMX", "amx_bf16"),
    ("AVX512_CORE_FP16", "avx512_fp16"),
    ("AVX512_CORE_BF16", "avx512_bf16"),
    ("AVX512_CORE_VNNI", "avx512_vnni"),
    ("AVX512_CORE", "avx512_f"),
    ("AVX2", "avx2"),
)
"""oneDNN's names of instruction sets, the newest first, and the CPU flag that each needs (its manual, "CPU Dispatcher
Control")."""


def environment_of(
    revision: RecordedRevision,
    interpreter: Interpreter,
    checkout: Path,
    settings: Mapping[str, str],
    granted: Collection[str],
) -> tuple[dict[str, str], list[str]]:
    """The variables for the stages, and a line for each recorded fact that this machine lacks or the user changes."""
    values = neutral_environment(interpreter, checkout, granted)
    sessions = revision.execution.sessions if revision.execution else []
    if not sessions:
        notes = ["the record does not say how the training was executed: this machine's defaults are used"]
    else:
        recorded, notes = settings_for(sessions[0], interpreter.machine, revision.work)
        values |= recorded
    for name, value in settings.items():
        notes.append(f"as asked: {name}={value} (recorded: {values.get(name, 'not set')})")
        values[name] = value
    return values, notes


def neutral_environment(interpreter: Interpreter, checkout: Path, granted: Collection[str]) -> dict[str, str]:
    """This shell's variables without secrets, without those that may change a result, and without this project's own
    folders."""
    home = str(STATE_DIR.absolute())
    values = {name: value for name, value in without_secrets(granted).items() if not value.startswith(home)}
    own = str(interpreter.python.absolute().parent)
    path = [own, *(part for part in values.get("PATH", "").split(os.pathsep) if part != own)]
    # The trackers that the parameters name get nothing sent: a reproduction is not one of the runs.
    values |= {"DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1", "WANDB_MODE": "offline", "PYTHONUNBUFFERED": "1"}
    return values | {"PATH": os.pathsep.join(path), "PYTHONPATH": str(checkout)}


def settings_for(session: Session, machine: Machine, work: Path) -> tuple[dict[str, str], list[str]]:
    """The variables that let the training run as recorded, and what they cannot do here."""
    notes: list[str] = []
    values = recorded_settings(session)
    if session.device_type != "cpu":  # there it follows from the memory that was free
        values["PARROTFLOW_MICRO_BATCH"] = str(session.micro_batch_size)
    if session.compiled and session.device_type == "cpu" and not any(map(shutil.which, ("g++", "clang++"))):
        notes.append("the recorded run was compiled; there is no C++ compiler here, so this one is not")
        values["PARROTFLOW_COMPILE"] = "off"
    enough = session.device_type == "cpu" or session.processes <= len(machine.accelerators)
    if session.launch is not None and session.machines == 1 and enough:
        atomic_write(work / LAUNCH, session.launch)
        values["PARROTFLOW_LAUNCH"] = str(work / LAUNCH)
    elif session.launch is not None:
        notes.append(
            f"the recorded run had {session.processes} processes on {session.machines} machines ({session.device}); "
            "this machine cannot launch that: its own default is used"
        )
    if session.device_type == "cpu" and not session.isa_limits and (limits := limits_for(session, machine)):
        values |= limits
        shown = ", ".join(f"{name}={value}" for name, value in limits.items())
        notes.append(f"this processor has more vector instructions than the recorded one; limited by {shown}")
    return values, notes


def limits_for(session: Session, machine: Machine) -> dict[str, str]:
    """Limits that keep the libraries to the recorded processor's instructions; empty where it had all of this one's."""
    extra = [flag for _, flag in ISA_LEVELS if flag in machine.flags and flag not in session.cpu_flags]
    level = next((name for name, flag in ISA_LEVELS if flag in session.cpu_flags), None)
    if not extra or level is None:
        return {}
    limits = {"ONEDNN_MAX_CPU_ISA": level}
    if session.cpu_capability != machine.cpu_capability and session.cpu_capability in ("AVX2", "AVX512"):
        limits["ATEN_CPU_CAPABILITY"] = session.cpu_capability.lower()
    if level == "AVX2":
        limits["MKL_ENABLE_INSTRUCTIONS"] = level
    return limits


def check_segment(
    request: ReproduceOptions,
    steps: tuple[int, int],
    revision: RecordedRevision,
    python: Path,
    checkout: Path,
    environment: Mapping[str, str],
) -> int:
    """Compute the steps between two checkpoints again, by the checker in the checkout; its exit code.

    Raises UserError if the revision does not record how its training was executed.
    """
    if revision.execution is None:
        raise UserError(f"{revision.asked}: does not record the checkpoints of its training: --segment cannot check it")
    checkpoints = (CHECKPOINTS / revision.execution.fingerprint).absolute()
    files = ["--record", str(revision.folder / EXECUTION), "--checkpoints", str(checkpoints)]
    asked = [part for name, value in request.settings.items() for part in ("--set", f"{name}={value}")]
    first, last = map(str, steps)
    trainer = str(revision.stages[str(revision.training)]["cmd"]).split()[-1]  # the checker is a module of its package
    command = ["-m", f"{trainer}.segment", "--from", first, "--to", last, *files, *asked]
    return run_python(python, command, checkout, environment)
