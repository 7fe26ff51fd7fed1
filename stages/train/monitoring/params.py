"""The `monitoring` section of params.yaml.

No stage lists it in dvc.yaml, so a change reruns nothing, and no model card or revision contains it. A training reads
it at each start, also when it continues.
"""

from typing import Literal

from stages.runtime.section import PositiveInteger, Section


class MonitoringParams(Section):
    """HOW a training is monitored and saved: the weights do not depend on it."""

    log_every_steps: PositiveInteger
    """Steps between two points of the training curves."""
    evaluate_every_steps: PositiveInteger
    """Steps between two evaluations on held-out sequences."""
    checkpoint_every_steps: PositiveInteger
    """Steps between two checkpoints; a crash loses at most this many."""
    checkpoints_kept: PositiveInteger
    """How many of the newest checkpoints are kept."""
    milestone_every_steps: PositiveInteger | None
    """Steps between two checkpoints that are kept forever. Null: only the newest are kept."""
    trackers: list[Literal["wandb", "tensorboard", "trackio", "mlflow"]]
    """Services that show the run, besides reports/curves."""
