"""The quality gate: which model may become `main`. The stage itself checks it, however the stage is started."""

from dataclasses import dataclass, field

from stages.formats.evaluation.report import Evaluation, PublishedEvaluation
from stages.publish.params import GateParams
from stages.runtime.entry import RefusedError


@dataclass(frozen=True, slots=True)
class Gate:
    """The conditions, and the evaluation of the model that is to become `main`."""

    params: GateParams
    evaluation: Evaluation | PublishedEvaluation
    advice: str = "nothing was published; to replace it, set publish.gate.allow_worse to true"
    """What a refusal ends with."""
    compared: set[float] = field(default_factory=set)
    """With which values it was compared, so that a repeated check says so once."""

    def check_limit(self) -> None:
        """Raise RefusedError if the model exceeds the fixed limit."""
        limit, value = self.params.bits_per_byte_at_most, self.evaluation.bits_per_byte
        if limit is not None and not value <= limit:
            raise RefusedError(
                f"publish.gate.bits_per_byte_at_most = {limit:g}: the model has {value:g}; nothing was published"
            )

    def check_not_worse(self, published: PublishedEvaluation | None, location: str) -> None:
        """Raise RefusedError if the model is worse than `published`, the evaluation of what `main` leads to now.

        None means that `main` holds a model without a readable evaluation: that is refused too.
        """
        allowed, ours, theirs = self.params.allow_worse, self.evaluation, published
        if theirs is None:
            if not allowed:
                raise RefusedError(
                    f"{location}: main holds a model without an evaluation to compare with; {self.advice}"
                )
            return
        on_other_data = (ours.documents, ours.bytes) != (theirs.documents, theirs.bytes)
        other_data = " (on other held-out documents)" if on_other_data else ""
        self.say(theirs.bits_per_byte, other_data)
        if not allowed and not ours.bits_per_byte <= theirs.bits_per_byte + self.params.tolerance:
            another = "; a model of another corpus takes a publish.name of its own" if on_other_data else ""
            raise RefusedError(
                f"{location}: the model has {ours.bits_per_byte:g} bits per byte, main has {theirs.bits_per_byte:g}"
                f"{other_data}; {self.advice}{another}"
            )

    def say(self, theirs: float, other_data: str) -> None:
        """Print both values with their difference, once."""
        if theirs not in self.compared:
            self.compared.add(theirs)
            ours = self.evaluation.bits_per_byte
            print(f"bits per byte {ours:g}, main has {theirs:g}{other_data}: {ours - theirs:+.6g}", flush=True)
