"""The effective training time ratio (ETTR): the share of the time since a run began in which it made lasting progress.

Useful are the seconds of training steps and evaluations whose result a checkpoint or the final model holds (Kokolis et
al. 2024, "Revisiting Reliability in Large-Scale Machine Learning Research Clusters"). Lost are starts of
the trainer, steps that were computed again, waits for checkpoints, and the time between two sessions. The time before
the first start, such as in a queue, is not known here. The times of starts are in each checkpoint, and in a file next
to them, which also knows the sessions that died before they had saved anything.
"""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stages.train.checkpoint.manifest import TrainingProgress
from stages.train.monitoring.throughput import Throughput

STARTS = "starts"
"""In the folder of a run's checkpoints: the time of each start, a line each."""


@dataclass(frozen=True)
class Uptime:
    """Of a run over all of its sessions."""

    starts: list[float]
    """When each session began, seconds since 1970, increasing; the last is this one."""
    useful_before: float
    """Useful seconds of the sessions before."""

    @classmethod
    def of(cls, progress: TrainingProgress, folder: Path, began: float) -> "Uptime":
        """Of the session that `began` then and continues from `progress`; the run's checkpoints are in `folder`.

        A run that was already complete and is made longer is measured from here on: it did not wait to be continued.
        """
        known = progress.starts
        if progress.step == progress.max_steps:
            return cls([began], 0.0)
        if (folder / STARTS).exists():
            known = sorted({*known, *map(float, (folder / STARTS).read_text().split())})
        return cls([*(start for start in known if start < began), began], progress.useful_seconds)

    def write(self, folder: Path) -> None:
        """Note that this session began; on a full disk the run goes on without."""
        with suppress(OSError):
            (folder / STARTS).write_text("".join(f"{start}\n" for start in self.starts))

    def useful_seconds(self, throughput: Throughput) -> float:
        """Up to now, if what this session computed lasts."""
        return self.useful_before + throughput.seconds - throughput.aside_seconds["checkpoint"]

    def metrics(self, throughput: Throughput) -> dict[str, float]:
        """All of it by name, of a run that is complete now."""
        useful, total = self.useful_seconds(throughput), time.time() - self.starts[0]
        return {
            "interruptions": len(self.starts) - 1,
            "total_seconds": total,
            "lost_seconds": total - useful,
            "effective_training_time_ratio": useful / total,
        }
