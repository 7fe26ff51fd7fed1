"""How fast runs were: each of them step by step, and the last one of each model on this machine.

Times differ from run to run, so no output that DVC keeps holds them. `speed.tsv` in the folder of a run's checkpoints
is only appended to: steps that were computed again after a kill are in it again, and `seconds` begins at 0 with each
session. The speeds of models are what the forecast of another run goes by.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from stages.formats.revision.execution import TRAIN_SPEED
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import STATE_DIR
from stages.train.monitoring.throughput import Throughput, peak_memory_bytes

SPEEDS = STATE_DIR / "speeds.json"
"""A list of `MeasuredSpeed`. Without it only forecasts are missing."""

SPEED_CURVE = "speed.tsv"
COLUMNS = (
    *("step", "seconds", "tokens_per_second", "model_flops_utilisation"),
    *("data_wait", "checkpoint_seconds", "evaluation_seconds", "memory_bytes"),
)


@dataclass
class SpeedCurve:
    """A line for each point of the training curves, about the steps since the line before."""

    path: Path
    throughput: Throughput
    tokens: int = 0
    training_seconds: float = 0.0
    data_seconds: float = 0.0

    def append(self, step: int) -> None:
        """Add the line of `step`. Speed and `data_wait`, the share of the time that was spent waiting for data, leave
        evaluation and checkpoints out; these have their sums, and the memory is the most so far. Of a device whose peak
        is unknown the utilisation is empty."""
        now, asides = self.throughput, self.throughput.aside_seconds
        seconds = now.seconds
        training = seconds - sum(asides.values())
        spent = max(1e-9, training - self.training_seconds)
        speed = (now.tokens - self.tokens) / spent
        utilisation = f"{speed * now.flops_per_token / now.peak_flops:.4f}" if now.peak_flops else ""
        wait = (now.data_seconds - self.data_seconds) / spent
        self.tokens, self.training_seconds, self.data_seconds = now.tokens, training, now.data_seconds
        values = (step, f"{seconds:.3f}", f"{speed:.1f}", utilisation, f"{wait:.4f}")
        sums = (f"{asides['checkpoint']:.3f}", f"{asides['evaluation']:.3f}", peak_memory_bytes())
        # A full disk costs these lines, not the run.
        with suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            if file.tell() == 0:
                file.write("\t".join(COLUMNS) + "\n")
            file.write("\t".join(map(str, (*values, *sums))) + "\n")


class MeasuredSpeed(BaseModel):
    """What a finished run says of its speed, in `reports/train_speed.json` among other things."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    device: str
    processes: int
    precision: str
    flops_per_token: Annotated[float, Field(gt=0)]
    """Of the model, which it identifies."""
    tokens_per_second: Annotated[float, Field(gt=0)]

    def is_like(self, other: "MeasuredSpeed") -> bool:
        """Whether it is of the same model, executed alike."""
        return self.model_copy(update={"tokens_per_second": other.tokens_per_second}) == other


def measured_speeds() -> Iterator[MeasuredSpeed]:
    """Of all models that were trained on this machine, and that of `reports/train_speed.json`, the latest first.

    What cannot be read is left out.
    """
    known = TypeAdapter(list[MeasuredSpeed])
    with suppress(OSError, ValueError, ValidationError):
        yield from known.validate_json(SPEEDS.read_bytes())
    with suppress(OSError, ValueError, ValidationError):
        yield MeasuredSpeed.model_validate_json(TRAIN_SPEED.read_bytes())


def remember_speed(facts: Mapping[str, Any]) -> None:
    """Keep the speed of a finished run, in place of an earlier one of the same model executed alike.

    One that was continued at its last step has none.
    """
    if not facts["tokens_per_second"]:
        return
    new = MeasuredSpeed.model_validate(facts)
    kept = [new, *(known for known in measured_speeds() if not known.is_like(new))]
    with suppress(OSError):  # a full disk costs the next forecast, not the run
        atomic_write(SPEEDS, json.dumps([speed.model_dump() for speed in kept], indent=1))
