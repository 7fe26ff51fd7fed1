"""What a run will cost, before it starts: operations, hours and memory; and the refusal of one that cannot fit.

It will be as fast as the last run of its model here, else as one of a model of about its size, or as what the hardware
can do at its peak.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from stages.formats.tokens import Manifest
from stages.runtime.entry import UserError
from stages.runtime.launch import LaunchConfig
from stages.train.hardware import MICRO_BATCH, USABLE, balanced, given_micro_batch_size, resolve_precision
from stages.train.memory import Memory, Process, memory_of_step
from stages.train.model.build import flops_per_token, model_without_weights
from stages.train.monitoring.throughput import device_name, measured_speeds, peak_flops
from stages.train.optim.settings import Precision
from stages.train.parallel import has_buckets
from stages.train.params import TrainParams

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
SWAPS = Path("/proc/swaps")

MEMORY_CHECK = "PARROTFLOW_MEMORY_CHECK"

SURE = 0.9
"""A run is refused where this share of its forecast is more than there is: what is measured is within 10 % of it."""

SHARE_OF_PEAK = 0.3
"""Of the peak that a run is taken to reach where nothing was measured: nanoGPT's GPT-2 124M reaches 0.29 of an A100's
and 0.33 of an H100's, with torch.compile. Ours reaches 0.43 of an H200's. Smaller models reach less."""

ALIKE = 10
"""Times the FLOPs per token of another model, or part of them, at which its speed still tells something."""

QUEUEING_SECONDS = 0.03
"""Of a step, however small the model: the host queues every kernel. The default model, of 3 layers, took 27 to 35 ms a
step on an H200, whose peak would allow 0.04 ms."""


@dataclass(frozen=True)
class Speed:
    """An expected speed, and where it comes from."""

    tokens_per_second: float | None
    """Of all processes together; None where there is nothing to go by."""
    source: str
    is_measured: bool = False
    """Of this model itself."""


@dataclass(frozen=True)
class Forecast:
    """Of a whole run, the part that is done already included."""

    params: TrainParams
    """With the precision that the hardware means."""
    launch: LaunchConfig
    parameters: int
    """As trained: the vocabulary is padded."""
    flops_per_token: int
    process: Process
    memory: Memory
    """Of each process."""
    capacity: int | None
    """Bytes that each process can have; None where that is not known."""
    speed: Speed

    @property
    def tokens(self) -> int:
        """Of all steps."""
        return self.params.tokens

    @property
    def lines(self) -> list[str]:
        """Model, time and memory, a line each."""
        unit = "process" if self.launch.processes == 1 else f"of {self.launch.processes} processes"
        of = "" if self.capacity is None else f" of {scaled(self.capacity, 'B')}"
        parts = " + ".join(f"{name} {scaled(size, 'B')}" for name, size in self.memory.parts.items())
        sharded = f", sharded over {self.process.shards}" if self.process.shards > 1 else ""
        micro_batches = f"micro-batches of {self.process.micro_batch_size} sequences, {self.params.precision}{sharded}"
        missing = f"; activations are not known: {self.memory.reason}" if self.memory.reason else ""
        unknown = "; the memory of the device is not known" if self.capacity is None else ""
        time, rate = "not known:", self.speed.tokens_per_second
        if rate is not None:
            at = f"{rate:,.0f}" if self.speed.is_measured else f"about {float(f'{rate:.2g}'):,.0f}"
            time = f"about {duration(self.tokens / rate)} at {at} tokens/s,"
        return [
            f"model: {self.parameters:,} parameters, {scaled(self.flops_per_token, 'FLOPs')} per token; "
            f"{self.tokens:,} tokens in {self.params.max_steps:,} steps are "
            f"{scaled(self.tokens * self.flops_per_token, 'FLOPs')}",
            f"time: {time} {self.speed.source}",
            f"memory: about {scaled(self.memory.total, 'B')}{of} in each {unit}: {parts} ({micro_batches})"
            f"{missing}{unknown}",
        ]

    @property
    def misfit(self) -> str:
        """The numbers and what to change, where a process surely has too little memory; else empty."""
        if self.capacity is None or SURE * self.memory.total <= self.capacity:
            return ""
        size, parts = self.process.micro_batch_size, self.memory.parts
        # After each backward pass there are gradients, as large as the weights: no smaller step needs less than these.
        by_step = SURE * (2 * parts["weights"] + parts["optimizer"]) <= self.capacity
        by_sequence = by_step and size > 1 and self.params.deterministic_micro_batch_size is None
        checkpoints = by_step and not self.params.gradient_checkpointing
        remedies = [
            *([f"set {MICRO_BATCH} below {size}"] if by_sequence else []),
            *(["set train.gradient_checkpointing: true"] if checkpoints else []),
            *(["lower train.sequence_length"] if by_step else []),
            *([] if self.launch.sharded else ["shard the model over several GPUs (PARROTFLOW_LAUNCH=fsdp2)"]),
            "choose a smaller model",
        ]
        named = ", ".join(f"{name} {scaled(size, 'B')}" for name, size in parts.items())
        return (
            f"train: the run cannot fit: each process needs about {scaled(self.memory.total, 'B')} ({named}) "
            f"and can have {scaled(self.capacity, 'B')}; "
            f"{', '.join(remedies[:-1])}{' or ' * (len(remedies) > 1)}{remedies[-1]}"
        )

    def check_fits(self) -> None:
        """Raise UserError where there is a `misfit`; a line says so where the variable says to start nevertheless."""
        choice = os.environ.get(MEMORY_CHECK) or "on"
        if choice not in ("on", "off"):
            raise UserError(f"{MEMORY_CHECK}={choice}: expected on or off")
        if self.misfit and choice == "on":
            raise UserError(f"{self.misfit} ({MEMORY_CHECK}=off turns the check off)")
        if self.misfit:
            print(f"warning: {self.misfit}", flush=True)


def make_forecast(params: TrainParams, vocabulary: Manifest, launch: LaunchConfig) -> Forecast:
    """The forecast for a launch on this machine. Raises UserError where the model cannot be built."""
    params = resolve_precision(params, launch.device_type)
    model = model_without_weights(params, vocabulary)
    flops = flops_per_token(model, params.sequence_length)
    own = launch.processes // launch.machines
    memory = device_memory(launch.device_type)
    capacity = memory if memory is None or launch.device_type != "cpu" else memory // own
    share = params.global_batch_size // launch.processes
    buckets = has_buckets(params, launch.processes, launch.sharded)
    alone = Process(launch.device_type, 1, share, launch.shards, buckets)
    of_step = partial(memory_of_step, params, model.config)
    size = given_micro_batch_size(params, launch.device_type, share)
    if size is None:
        one, two = (of_step(replace(alone, micro_batch_size=count)).total for count in (1, 2))
        fitting = 1 if capacity is None else int((USABLE * capacity - (2 * one - two)) / max(1, two - one))
        size = balanced(share, fitting)
    process = replace(alone, micro_batch_size=size, micro_batches=-(-share // size))
    return Forecast(
        params,
        launch,
        parameters=model.num_parameters(),
        flops_per_token=flops,
        process=process,
        memory=of_step(process),
        capacity=capacity,
        speed=expected_speed(
            flops,
            launch.device_type,
            launch.processes,
            params.precision,
            step_tokens=params.global_batch_size * params.sequence_length,
        ),
    )


def expected_speed(
    flops_per_token: float, device_type: str, processes: int, precision: Precision, step_tokens: float
) -> Speed:
    """From runs on this kind of device, with as many processes and in this precision; else from the peak.

    Where this model was not among them, the one counts whose FLOPs per token are nearest, by their ratio: its FLOPs per
    second are taken, which are fewer the smaller a model is. Where the peak is known, one that is not `ALIKE` counts
    for nothing: the time of a small model's step on a GPU is the host's.

    `step_tokens`: of a step, the mean of all steps, over all processes.
    """
    device = torch.device(device_type)
    name = device_name(device)
    alike = [
        speed
        for speed in measured_speeds()
        if (speed.device, speed.processes, speed.precision) == (name, processes, precision)
    ]
    peak = peak_flops(device, precision)
    if peak is not None:
        alike = [speed for speed in alike if 1 / ALIKE <= speed.flops_per_token / flops_per_token <= ALIKE]
    if alike:
        near = min(alike, key=lambda speed: abs(math.log(speed.flops_per_token / flops_per_token)))
        if near.flops_per_token == flops_per_token:
            return Speed(near.tokens_per_second, f"measured for this model on {name}", is_measured=True)
        rate, times = near.flops_per_token * near.tokens_per_second, near.flops_per_token / flops_per_token
        models = len({speed.flops_per_token for speed in alike})
        nearest = f", the nearest of {models} that were measured" if models > 1 else ""
        other = f"a model with {times:.2g} times the FLOPs per token{nearest}"
        return Speed(rate / flops_per_token, f"estimated from {rate:.2g} FLOP/s on {name} of {other}")
    if peak is None:
        return Speed(None, f"no run was measured on {name} in {precision}, and its peak is not known")
    rate, queued = SHARE_OF_PEAK * peak * processes, step_tokens / QUEUEING_SECONDS
    if rate / flops_per_token > queued:
        return Speed(queued, f"not measured: {QUEUEING_SECONDS} s a step, which the host takes to queue it for {name}")
    return Speed(
        rate / flops_per_token,
        f"not measured: {SHARE_OF_PEAK:.0%} of the peak of {processes} {name}, {rate:.3g} FLOP/s",
    )


def device_memory(device_type: str) -> int | None:
    """Bytes of the first GPU, or of the machine for a CPU; None where that cannot be known (Apple's GPUs)."""
    if device_type == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return machine_memory() if device_type == "cpu" else None


def machine_memory() -> int | None:
    """Bytes of memory and swap, or the least limit of the control groups that this process is in."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    # The third column of a table with a header, in KiB.
    swap = sum(int(row.split()[2]) * 1024 for row in _read(SWAPS).splitlines()[1:])
    return min([physical + swap, *_cgroup_limits()])


def _cgroup_limits() -> Iterator[int]:
    """Of version 2 at each level (`memory.max`), and of version 1."""
    for line in _read(OWN_CGROUP).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            own = CGROUPS / path.lstrip("/")
            files = [folder / "memory.max" for folder in (own, *own.parents) if folder.is_relative_to(CGROUPS)]
        elif "memory" in controllers.split(","):
            # A container sees its own group as the root.
            files = [CGROUPS / "memory" / place / "memory.limit_in_bytes" for place in (path.lstrip("/"), "")]
        else:
            continue
        yield from (int(limit) for limit in (_read(file).strip() for file in files) if limit.isdecimal())


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def scaled(value: float, unit: str) -> str:
    """A quantity with three digits and a prefix: 1.28 GB, 9.25 MFLOPs."""
    prefixes = iter(("", "k", "M", "G", "T", "P", "E", "Z", "Y", "R"))
    prefix = next(prefixes)
    while value >= 999.5:
        value, prefix = value / 1000, next(prefixes)
    return f"{value:.3g} {prefix}{unit}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: 40 s, 7 min, 3.5 h, 12 days."""
    for size, unit, until in ((1, "s", 90), (60, "min", 5400), (3600, "h", 172800)):
        if seconds < until:
            return f"{seconds / size:.2g} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"
