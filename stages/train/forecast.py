"""What a run will cost, before it starts: operations, time, and the state that must fit into memory.

The time is that of the last run of this model. Activations are not counted: the first steps of a run show whether they
fit.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedConfig

from stages.formats.tokens import Manifest
from stages.runtime.entry import UserError
from stages.runtime.launch import LaunchConfig
from stages.train.hardware import resolve_precision
from stages.train.model.build import flops_per_token, model_without_weights, without_values
from stages.train.monitoring.throughput import device_name, measured_speed
from stages.train.optim.optimizers import build_optimizers
from stages.train.optim.settings import Precision
from stages.train.params import TrainParams

StatePart = Literal["weights", "gradients", "optimizer"]


@dataclass(frozen=True)
class Speed:
    """An expected speed, and where it comes from."""

    tokens_per_second: float | None
    """Of all processes together; None if this model was not measured."""
    source: str


@dataclass(frozen=True)
class Forecast:
    """The cost of a whole run, including the steps that are done already."""

    params: TrainParams
    """With the precision that the hardware means."""
    launch: LaunchConfig
    parameters: int
    """As trained: the vocabulary is padded."""
    flops_per_token: int
    state: Mapping[StatePart, int]
    """Bytes that each process keeps between steps."""
    capacity: int
    """Bytes of memory for each process: the GPU's, or an equal share of the machine's."""
    speed: Speed

    @property
    def tokens(self) -> int:
        """Tokens of all steps."""
        return self.params.tokens

    @property
    def needed(self) -> int:
        """Bytes of the whole state."""
        return sum(self.state.values())

    @property
    def memory(self) -> str:
        """The state by part, and the memory there is."""
        parts = " + ".join(f"{name} {scaled(size, 'B')}" for name, size in self.state.items())
        return f"{parts} = {scaled(self.needed, 'B')} of {scaled(self.capacity, 'B')}"

    @property
    def lines(self) -> list[str]:
        """Model, time and memory, a line each."""
        time, rate = "not known:", self.speed.tokens_per_second
        if rate is not None:
            time = f"about {duration(self.tokens / rate)} at {rate:,.0f} tokens/s,"
        each = "the process" if self.launch.processes == 1 else f"each of {self.launch.processes} processes"
        return [
            f"model: {self.parameters:,} parameters, {scaled(self.flops_per_token, 'FLOPs')} per token; "
            f"{self.tokens:,} tokens in {self.params.max_steps:,} steps are "
            f"{scaled(self.tokens * self.flops_per_token, 'FLOPs')}",
            f"time: {time} {self.speed.source}",
            f"memory: {self.memory} in {each}, and activations ({self.params.precision})",
        ]

    @property
    def misfit(self) -> str:
        """The numbers and what to change if the state alone does not fit; else empty."""
        if self.needed <= self.capacity:
            return ""
        shard = "" if self.launch.sharded else "shard the model over several GPUs (PARROTFLOW_LAUNCH=fsdp2) or "
        return f"train: the run cannot fit: {self.memory} for each process; {shard}choose a smaller model"

    def check_fits(self) -> None:
        """Raise UserError if the state alone does not fit."""
        if self.misfit:
            raise UserError(self.misfit)


def make_forecast(params: TrainParams, vocabulary: Manifest, launch: LaunchConfig) -> Forecast:
    """The forecast for a launch on this machine. Raises UserError where the model cannot be built."""
    params = resolve_precision(params, launch.device_type)
    model = model_without_weights(params, vocabulary)
    flops = flops_per_token(model, params.sequence_length)
    state = state_bytes(params, model.config, launch.device_type)
    own = launch.processes // launch.machines if launch.device_type == "cpu" else 1
    return Forecast(
        params,
        launch,
        parameters=model.num_parameters(),
        flops_per_token=flops,
        state={part: size // launch.shards for part, size in state.items()},
        capacity=device_memory(launch.device_type) // own,
        speed=expected_speed(flops, launch, params.precision),
    )


def state_bytes(params: TrainParams, config: PreTrainedConfig, device_type: str) -> dict[StatePart, int]:
    """Bytes of weights, gradients and the optimizer's state, from an update of tensors that have no values.

    Raises UserError if transformers cannot build the model.
    """
    with torch.device(device_type), FakeTensorMode():
        model = without_values(config, device_type)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        optimizers = build_optimizers(model, params.optimizer, params.precision)
        optimizers.step(1.0)
        kept = [value for optimizer in optimizers for value in tree_leaves(list(optimizer.state.values()))]
        return {
            "weights": sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
            "gradients": sum(parameter.nbytes for parameter in trained),
            "optimizer": sum(value.nbytes for value in kept if isinstance(value, Tensor)),
        }


def expected_speed(flops_per_token: float, launch: LaunchConfig, precision: Precision) -> Speed:
    """The speed of the last run, if it was of this model on this kind and number of devices, in this precision."""
    name, last = device_name(torch.device(launch.device_type)), measured_speed()
    here = (name, launch.processes, precision, flops_per_token)
    if last is None or (last.device, last.processes, last.precision, last.flops_per_token) != here:
        return Speed(None, f"the last run was not of this model on {name} in {precision}")
    return Speed(last.tokens_per_second, f"measured for this model on {name}")


def device_memory(device_type: str) -> int:
    """Bytes of the first GPU, or of the machine for a CPU."""
    if device_type == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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
