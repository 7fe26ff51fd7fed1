"""Spikes: steps whose loss or gradient norm lies far above those of the steps before. They are logged, or skipped.

A value is a spike where it is more than `spikes.deviations` robust deviations above the median of the last
`spikes.window_steps` steps. A robust deviation is 1.4826 times the median absolute deviation, which is the standard
deviation where values are normally distributed (Rousseeuw and Croux 1993), and which a few spikes in the window do not
move. Every finite value enters the window, skipped steps too: so a level that has changed for good is the normal one
after half a window, and no run skips forever.

The windows are in each checkpoint: a run that continues decides as an undisturbed one. All processes decide by the main
process's values. With `deterministic_micro_batch_size` these have the same bits on any number of processes, and so the
decisions are the same; else they agree as far as rounding does.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor

from stages.formats.revision.execution import SIGNALS, Spike
from stages.train.params import Spikes

NORMAL = 1.4826
"""A normal distribution's standard deviation by its median absolute deviation."""


class SpikeMonitor:
    """Compares each step with those before it."""

    def __init__(self, params: Spikes, accelerator: Accelerator) -> None:
        self.params = params
        self.accelerator = accelerator
        self.windows = {signal: deque[float](maxlen=params.window_steps) for signal in SIGNALS}
        self._unread: list[tuple[int, Tensor]] = []
        self._found: list[Spike] = []

    def skips(self, step: int, loss: Tensor, gradient_norm: Tensor) -> bool:
        """Take note of a step (from 0) before its update; whether the update is to be left out.

        Waits for the device only under `spikes.skip`. Every process calls this.
        """
        if self.params.deviations is None:
            return False
        self._unread.append((step, torch.stack([loss.detach(), gradient_norm.detach()])))
        if not self.params.skip:
            return False
        found = self._read()
        self._found += found
        return bool(found)

    def found(self) -> list[Spike]:
        """The spikes since the last call, in order. Waits for the device where steps were noted and not read yet.

        Every process calls this.
        """
        found, self._found = [*self._found, *self._read()], []
        return found

    @property
    def recent(self) -> dict[str, list[float]]:
        """The windows, for a checkpoint: all steps are in them after `found`. Empty where no spikes are looked for."""
        return {signal: list(window) for signal, window in self.windows.items() if window}

    def restore(self, recent: Mapping[str, Sequence[float]]) -> None:
        """Take up the windows of a checkpoint."""
        for signal, window in self.windows.items():
            window.extend(recent.get(signal, ()))

    def _read(self) -> list[Spike]:
        if not self._unread:
            return []
        values = torch.stack([noted for _, noted in self._unread])
        steps, self._unread = [step for step, _ in self._unread], []
        if self.accelerator.num_processes > 1:
            values = broadcast(values)
        return [spike for step, row in zip(steps, values.tolist(), strict=True) if (spike := self._judge(step, row))]

    def _judge(self, step: int, values: list[float]) -> Spike | None:
        """The larger of a step's spikes; its values enter the windows."""
        spikes = []
        for (signal, window), value in zip(self.windows.items(), values, strict=True):
            if not math.isfinite(value):
                continue  # this ends the run
            if len(window) == window.maxlen:
                centre = median(window)
                deviation = NORMAL * median(abs(one - centre) for one in window)
                if value > centre + (self.params.deviations or 0) * deviation and deviation > 0:
                    far = (value - centre) / deviation
                    kept = {"value": value, "median": centre, "deviations": round(far, 2)}
                    spikes.append(Spike(step=step + 1, signal=signal, skipped=self.params.skip, **kept))
            window.append(value)
        return max(spikes, key=lambda spike: spike.deviations, default=None)
