"""The quality gate: which model may become `main`. The stage itself checks it, however the stage is started."""

from dataclasses import dataclass
from pathlib import Path

from stages.formats.evaluation.report import Evaluation, PublishedTotals, read_published_totals
from stages.formats.revision.layout import EVALUATION
from stages.publish.params import GateParams
from stages.runtime.entry import RefusedError, UserError


@dataclass(frozen=True, slots=True)
class Gate:
    """The conditions, and the evaluation of the model that is to be published."""

    params: GateParams
    evaluation: Evaluation

    def check_limit(self) -> None:
        """Raise RefusedError if the model exceeds the fixed limit."""
        limit, value = self.params.bits_per_byte_at_most, self.evaluation.bits_per_byte
        if limit is not None and not value <= limit:
            raise RefusedError(
                f"publish.gate.bits_per_byte_at_most = {limit:g}: the model has {value:g}; nothing was published"
            )

    def check_not_worse(self, published: PublishedTotals | None, location: str) -> None:
        """Raise RefusedError if the model is worse than `published`, the evaluation of what `main` leads to now.

        None means that `main` holds a model without a readable evaluation: that is refused too.
        """
        if self.params.allow_worse:
            return
        advice = "nothing was published; to replace it, set publish.gate.allow_worse to true"
        if published is None:
            raise RefusedError(f"{location}: main holds a model without an evaluation to compare with; {advice}")
        ours, theirs = self.evaluation, published
        if not ours.bits_per_byte <= theirs.bits_per_byte + self.params.tolerance:
            other_data = (ours.documents, ours.bytes) != (theirs.documents, theirs.bytes)
            raise RefusedError(
                f"{location}: the model has {ours.bits_per_byte:g} bits per byte, main has {theirs.bits_per_byte:g}"
                f"{' (on other held-out documents)' if other_data else ''}; {advice}"
            )


def published_evaluation(folder: Path) -> PublishedTotals | None:
    """The evaluation report in a revision's folder; None where there is none that can be read."""
    try:
        return read_published_totals(folder / EVALUATION)
    except (OSError, UserError):
        return None
