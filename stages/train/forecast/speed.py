"""How fast a run will be: as fast as the last one of its model here, else by one of a model of about its size, or by
what the hardware can do at its peak.
"""

import math
from dataclasses import dataclass

import torch

from stages.train.monitoring.speed_records import measured_speeds
from stages.train.monitoring.throughput import device_name, peak_flops
from stages.train.optim.settings import Precision

SHARE_OF_PEAK = 0.3
"""Of the peak that a run is taken to reach where nothing was measured: nanoGPT's GPT-2 124M reaches 0.29 of an A100's
and 0.33 of an H100's, with torch.compile. Smaller models reach less."""


@dataclass(frozen=True)
class Speed:
    """An expected speed, and where it comes from."""

    tokens_per_second: float | None
    """Of all processes together; None where there is nothing to go by."""
    source: str
    is_measured: bool = False
    """Of this model itself."""


def expected_speed(flops_per_token: float, device_type: str, processes: int, precision: Precision) -> Speed:
    """From runs on this kind of device, with as many processes and in this precision; else from the peak.

    Where this model was not among them, the one counts whose FLOPs per token are nearest, by their ratio: its FLOPs per
    second are taken, which are fewer the smaller a model is.
    """
    device = torch.device(device_type)
    name = device_name(device)
    alike = [
        speed
        for speed in measured_speeds()
        if (speed.device, speed.processes, speed.precision) == (name, processes, precision)
    ]
    if alike:
        near = min(alike, key=lambda speed: abs(math.log(speed.flops_per_token / flops_per_token)))
        if near.flops_per_token == flops_per_token:
            return Speed(near.tokens_per_second, f"measured for this model on {name}", is_measured=True)
        rate, times = near.flops_per_token * near.tokens_per_second, near.flops_per_token / flops_per_token
        models = len({speed.flops_per_token for speed in alike})
        nearest = f", the nearest of {models} that were measured" if models > 1 else ""
        other = f"a model with {times:.2g} times the FLOPs per token{nearest}"
        return Speed(rate / flops_per_token, f"estimated from {rate:.2g} FLOP/s on {name} of {other}")
    peak = peak_flops(device, precision)
    if peak is None:
        return Speed(None, f"no run was measured on {name} in {precision}, and its peak is not known")
    rate = SHARE_OF_PEAK * peak * processes
    return Speed(
        rate / flops_per_token,
        f"not measured: {SHARE_OF_PEAK:.0%} of the peak of {processes} {name}, {rate:.3g} FLOP/s",
    )
