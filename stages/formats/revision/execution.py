"""How a training was executed, `record/execution.json` of a revision; and the verdict on a segment, computed again.

Parameters say what is computed; this says with what: devices, processes, threads, libraries. Where they are the same,
the same parameters, code and data give the same bits. Training writes it to `reports/train_execution.json`.
"""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from stages.formats.reports import REPORTS, Report

TRAIN_EXECUTION = REPORTS / "train_execution.json"
TRAIN_SPEED = REPORTS / "train_speed.json"


class Session(BaseModel, frozen=True):
    """One start of the trainer, with what it ran on. No paths, no names of machines, no tokens."""

    first_step: int
    """The first optimizer step that counts and that this session computed; steps are counted from 1."""
    last_step: int
    """The last one; what it computed after the checkpoint that the next session continued from does not count. The step
    before the first one, where it found all steps computed by other code."""
    device: str
    """The name of the processor or GPU."""
    device_type: str
    """As torch names it: cpu, cuda, mps."""
    cpu_flags: list[str]
    """The processor's vector instructions, sorted: avx2, avx512f, amx_bf16, neon, sve."""
    cpu_capability: str
    """What torch's own kernels use (`torch.backends.cpu.get_cpu_capability`)."""
    isa_limits: dict[str, str]
    """Limits on the instructions of oneDNN, MKL and torch that were set: variable -> value."""
    processes: int
    machines: int
    threads_per_process: int
    precision: str
    compiled: bool
    micro_batch_size: int
    gradient_accumulation_steps: int
    """Micro-batches of a step in each process; of the last step where the batch grows."""
    distributed: Literal["none", "ddp", "fsdp2"]
    environment: dict[str, str]
    """Variables that were set and can change the computation (PARROTFLOW_*, OMP_*, MKL_*, TORCH*, ...)."""
    launch: str | None
    """The content of the launch preset; None where none was used."""
    versions: dict[str, str]
    """Library -> the version that was imported, with its build tag (2.13.0+cpu); and python."""
    continued_from: str | None = None
    """The fingerprint of the run whose steps before this session were computed by other code
    (`PARROTFLOW_CONTINUE`)."""
    wheels: dict[str, str] = {}
    """Library -> sha256 that tells its wheel from others of the same version (`wheels.wheel_digest`)."""

    @property
    def has_steps(self) -> bool:
        """Whether it computed any that count."""
        return self.first_step <= self.last_step


OBSERVED_TWICE = ("device", "processes", "threads_per_process", "precision", "compiled", "micro_batch_size")
"""Facts of the last session with steps that `reports/train_speed.json` has too, and so `training` in the index."""

Signal = Literal["loss", "gradient_norm"]

SIGNALS: tuple[Signal, ...] = ("loss", "gradient_norm")
"""What is compared with the steps before it."""


class Spike(BaseModel, frozen=True):
    """A step whose loss or gradient norm lay far above those of the steps before (`train.spikes`)."""

    step: int
    """From 1."""
    signal: Signal
    """Which of the two; the farther one where both did."""
    value: float
    median: float
    """Of the steps before it."""
    deviations: float
    """How far above the median, in robust deviations."""
    skipped: bool
    """Whether its update was left out."""


class Execution(Report, extra="ignore"):
    """How the training of some weights was executed."""

    path: ClassVar[Path] = TRAIN_EXECUTION
    stage: ClassVar[str] = "train"

    weights_sha256: str
    """Of the weights that these sessions made (`model_folder.weights_sha256`)."""
    fingerprint: str
    """Of the run, as its checkpoints have it."""
    sessions: list[Session]
    """In order; more than one where the training was stopped and continued."""
    spikes: list[Spike] = Field(default_factory=list)
    """In order; only where they were looked for."""
    checkpoints: dict[int, str]
    """Step of a checkpoint -> sha256 of its content, the same for any number of processes."""


class ComparedHash(BaseModel, frozen=True):
    """A hash on record, and the one that was found."""

    what: str
    """`checkpoint of step 500`, or `weights`."""
    recorded: str
    found: str


class DifferingFact(BaseModel, frozen=True):
    """A fact of the recorded execution that this one does not share."""

    fact: str
    """A field of `Session`, or one of its libraries as `versions.torch`."""
    recorded: str
    here: str


class SegmentReport(Report, extra="ignore"):
    """The verdict on a segment of a run, the steps between two of its checkpoints, that was computed again."""

    stage: ClassVar[str] = "train"

    verdict: Literal["equal", "different", "cannot"]
    reason: str
    """In a sentence."""
    from_step: int
    to_step: int
    compared: list[ComparedHash] = Field(default_factory=list)
    """In the order of steps, up to the first one that differs."""
    differences: list[DifferingFact] = Field(default_factory=list)
    seconds: float
    """Of the command, after its imports."""
