"""The report of a training: `reports/train.json`. Its held-out loss is a curve; the number is evaluate's."""

from typing import ClassVar

from pydantic import BaseModel

from stages.formats.reports import Report
from stages.formats.revision.execution import TRAIN_REPORT


class SourceShare(BaseModel, frozen=True, extra="forbid"):
    """The tokens of one source that a run trains on."""

    tokens: int
    """Trained on; a token that is read in two epochs counts twice."""
    share: float
    """Share of the tokens of all sources."""
    epochs: float
    """The tokens as a multiple of the source's own."""


class TrainingReport(Report):
    """The result of the computation: the same on every machine up to rounding, the same bytes on the same machine.

    Every figure covers the whole run, across interruptions and processes.
    """

    path: ClassVar = TRAIN_REPORT
    stage: ClassVar = "train"

    weights_sha256: str
    """Hash of the weights in `model/` (`model_folder.weights_sha256`): a damaged copy of them is not published."""
    parameters: int
    """As trained: the vocabulary is padded."""
    steps: int
    tokens: int
    """Trained on; a token that is read in two epochs counts twice."""
    epochs: float
    """`tokens` as a share of the training split."""
    model_flops: float
    """Floating-point operations of the model for these tokens, forward and backward, by `flops_per_token`. Held-out
    evaluation, the optimizer and what is computed again to save memory do not count."""
    training_loss: float
    """Nats per token, of the last step."""
    mixture: dict[str, SourceShare]
    """What each source gave; empty without a mixture."""
