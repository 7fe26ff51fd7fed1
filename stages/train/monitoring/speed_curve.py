"""How fast a run was, step by step: `speed.tsv` in the folder of its checkpoints.

Times differ from run to run, so no output that DVC keeps holds them. The file is only appended to: steps that were
computed again after a kill are in it again, and `seconds` begins at 0 with each session.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stages.train.monitoring.throughput import Throughput, peak_memory_bytes

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
