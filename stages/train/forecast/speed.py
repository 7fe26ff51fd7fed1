"""How fast a run will be: as fast as the last one here, else by what the hardware can do at its peak."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stages.formats.revision.execution import TRAIN_SPEED
from stages.train.monitoring.throughput import device_name, peak_flops
from stages.train.optim.settings import Precision

SHARE_OF_PEAK = 0.3
"""Of the peak that a run is taken to reach where nothing was measured: nanoGPT's GPT-2 124M reaches 0.29 of an A100's
and 0.33 of an H100's, with torch.compile. Smaller models reach less."""


class MeasuredSpeed(BaseModel):
    """What is read of `reports/train_speed.json`, the speed of the last run that ended."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    device: str
    processes: int
    precision: str
    flops_per_token: Annotated[float, Field(gt=0)]
    tokens_per_second: Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class Speed:
    """An expected speed, and where it comes from."""

    tokens_per_second: float | None
    """Of all processes together; None where there is nothing to go by."""
    source: str


def expected_speed(
    flops_per_token: float, device_type: str, processes: int, precision: Precision, measured_in: Path = TRAIN_SPEED
) -> Speed:
    """From the last run on this kind of device, with as many processes and in this precision; else from the peak.

    A run of another model tells the operations per second, which are alike in models of about the same size.
    """
    device = torch.device(device_type)
    name = device_name(device)
    last = last_speed(measured_in)
    if last and (last.device, last.processes, last.precision) == (name, processes, precision):
        if last.flops_per_token == flops_per_token:
            return Speed(last.tokens_per_second, f"measured for this model on {name} ({measured_in})")
        rate = last.flops_per_token * last.tokens_per_second
        return Speed(
            rate / flops_per_token,
            f"estimated from {rate:.3g} FLOP/s, measured for another model on {name} ({measured_in})",
        )
    peak = peak_flops(device, precision)
    if peak is None:
        return Speed(None, f"no run was measured on {name} in {precision}, and its peak is not known")
    rate = SHARE_OF_PEAK * peak * processes
    return Speed(
        rate / flops_per_token,
        f"not measured: {SHARE_OF_PEAK:.0%} of the peak of {processes} {name}, {rate:.3g} FLOP/s",
    )


def last_speed(file: Path) -> MeasuredSpeed | None:
    """What the last run left; None where there was none, or its report cannot be read."""
    try:
        return MeasuredSpeed.model_validate(json.loads(file.read_bytes()))
    except (OSError, ValueError, ValidationError):
        return None
