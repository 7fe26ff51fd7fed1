"""The interpreter of a reproduction, with the locked versions, and the variables of the recorded execution.

The interpreter is the running one if it has these versions, else that of a new virtual environment. The variables make
the training run as recorded, as far as this machine can.
"""

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from flows.reproduce.commands import SHOWN_LINES, output, without_secrets
from flows.reproduce.probe import probe as probed
from flows.reproduce.revision import RecordedRevision
from stages.formats.revision.execution import Session, recorded_settings
from stages.formats.revision.provenance import RECORDED_REQUIREMENTS
from stages.runtime.atomic import atomic_write
from stages.runtime.errors import STAGES_TO_DO, STATE_DIR, UserError, first_line
from stages.runtime.stage_code import pinned

ISA_LEVELS = (
    ("AVX512_CORE_AMX", "amx_bf16"),
    ("AVX512_CORE_FP16", "avx512_fp16"),
    ("AVX512_CORE_BF16", "avx512_bf16"),
    ("AVX512_CORE_VNNI", "avx512_vnni"),
    ("AVX512_CORE", "avx512_f"),
    ("AVX2", "avx2"),
)
"""oneDNN's names of instruction sets, newest first, and the CPU flag that each needs (its manual, "CPU Dispatcher
Control")."""

VENV, READY, REQUIREMENTS = "venv", "ready", "requirements.txt"

INSTALL = Path(__file__).parents[2] / "deploy/install.py"


class Machine(BaseModel):
    """Facts about an interpreter and its machine, from `probe.py`."""

    model_config = ConfigDict(frozen=True)

    python: str
    versions: dict[str, str]
    """Library (normalized as in PEP 503) -> version without build tag."""
    flags: list[str]
    """torch's names of the processor's instruction sets."""
    accelerators: list[str]
    """The GPUs that torch finds."""
    cpu_capability: str | None
    """The instruction set of torch's kernels; None without torch."""


@dataclass(frozen=True)
class Interpreter:
    """The interpreter that runs the stages."""

    python: Path
    machine: Machine
    how: str
    """Where the environment comes from, in words."""


def choose_interpreter(revision: RecordedRevision) -> Interpreter:
    """The running interpreter if it has the locked versions, else that of a virtual environment with them."""
    pins, machine = pinned(revision.folder / RECORDED_REQUIREMENTS, here=True), probe_interpreter(Path(sys.executable))
    locked = {name: version for name, (_, version) in pins.items()}
    if locked.items() <= machine.versions.items():
        how = f"the running interpreter has all {len(locked)} locked versions"
        return Interpreter(Path(sys.executable), machine, how)
    made = make_environment(revision, machine.python)
    return Interpreter(made, probe_interpreter(made), f"{revision.work / VENV}, made from the lock")


def probe_interpreter(python: Path) -> Machine:
    """Get the facts from an interpreter. Raises UserError if it is not Python."""
    if python == Path(sys.executable):
        return Machine.model_validate(probed())
    try:
        program = str(Path(__file__).with_name("probe.py"))
        return Machine.model_validate_json(output([str(python), "-I", program], Path.cwd()))
    except (OSError, ValueError) as error:
        raise UserError(f"{python}: not a Python interpreter ({first_line(error)})") from None


def make_environment(revision: RecordedRevision, python_here: str) -> Path:
    """Create a virtual environment with only the locked versions, or complete one after a kill.

    It has the recorded minor version of Python. Raises UserError if that is not on the PATH, or the installation fails.
    """
    recorded = re.match(r"\d+\.\d+", revision.python or python_here)
    minor = recorded[0] if recorded else python_here
    base = sys.executable if f"{python_here}.".startswith(f"{minor}.") else shutil.which(f"python{minor}")
    if base is None:
        raise UserError(
            f"{revision.asked}: was made with Python {revision.python}; this is {python_here}, and PATH has no "
            f"python{minor}: install it"
        )
    folder, requirements = revision.work / VENV, revision.work / REQUIREMENTS
    python = folder / "bin" / "python"
    if not (folder / READY).exists():
        print("      installing the recorded requirements.lock into its own environment (minutes, once)", flush=True)
        output([base, "-m", "venv", str(folder)], revision.work, lines=SHOWN_LINES)
        pins = pinned(revision.folder / RECORDED_REQUIREMENTS, here=True, hashes=True).values()
        # Only names and versions, which an installer cannot read as a URL.
        atomic_write(requirements, "".join(f"{name}=={version}\n" for name, version in pins))
        install = [str(python), str(INSTALL), str(requirements)]
        of_pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        output(install, revision.work, without_secrets() | of_pip, lines=SHOWN_LINES)
        (folder / READY).touch()
    return python


def environment_of(
    revision: RecordedRevision, interpreter: Interpreter, checkout: Path
) -> tuple[dict[str, str], list[str]]:
    """The variables for the stages, and a line for each recorded fact that this machine cannot match."""
    values = neutral_environment(interpreter, checkout)
    if revision.execution is None or not revision.execution.sessions:
        return values, ["the record does not say how the training was executed: this machine's defaults are used"]
    recorded, notes = settings_for(revision.execution.sessions[0], interpreter.machine, revision.work)
    return values | recorded, notes


def neutral_environment(interpreter: Interpreter, checkout: Path) -> dict[str, str]:
    """The environment without secrets, variables that may change a result, and paths of this project."""
    home = str(STATE_DIR.absolute())
    values = {name: value for name, value in without_secrets().items() if not value.startswith(home)}
    folder = str(interpreter.python.absolute().parent)
    path = [folder, *(part for part in values.get("PATH", "").split(os.pathsep) if part != folder)]
    # A reproduction is not a run of the project, so trackers are offline.
    values |= {"DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1", "WANDB_MODE": "offline", "PYTHONUNBUFFERED": "1"}
    values[STAGES_TO_DO] = ""  # do not check for files of stages that do not run
    return values | {"PATH": os.pathsep.join(path), "PYTHONPATH": str(checkout)}


def settings_for(session: Session, machine: Machine, work: Path) -> tuple[dict[str, str], list[str]]:
    """The variables that make the training run as recorded, and notes on what this machine cannot match."""
    notes: list[str] = []
    values = recorded_settings(session)
    if session.device_type != "cpu":  # on GPUs the size depends on the free memory
        values["PARROTFLOW_MICRO_BATCH"] = str(session.micro_batch_size)
    if session.compiled and session.device_type == "cpu" and not any(map(shutil.which, ("g++", "clang++"))):
        notes.append("the recorded run was compiled; there is no C++ compiler here, so this one is not")
        values["PARROTFLOW_COMPILE"] = "off"
    enough = session.device_type == "cpu" or session.processes <= len(machine.accelerators)
    if session.launch is not None and session.machines == 1 and enough:
        atomic_write(work / "launch.yaml", session.launch)
        values["PARROTFLOW_LAUNCH"] = str(work / "launch.yaml")
    elif session.launch is not None:
        notes.append(
            f"the recorded run had {session.processes} processes on {session.machines} machines ({session.device}); "
            "this machine cannot launch that, so its default is used"
        )
    if session.device_type == "cpu" and not session.isa_limits and (limits := limits_for(session, machine)):
        values |= limits
        shown = ", ".join(f"{name}={value}" for name, value in limits.items())
        notes.append(f"this processor has more vector instructions than the recorded one; limited by {shown}")
    return values, notes


def limits_for(session: Session, machine: Machine) -> dict[str, str]:
    """Variables that limit libraries to the recorded processor's instructions; empty if it had all of this one's."""
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
