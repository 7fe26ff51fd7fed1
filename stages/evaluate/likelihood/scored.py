"""Each set scored by each model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stages.evaluate.likelihood.held_out import HeldOutSet
from stages.evaluate.likelihood.models import PREVIOUS, ScoredModel
from stages.evaluate.likelihood.processes import Task, score_tasks
from stages.evaluate.likelihood.report import Scores, mean_losses
from stages.evaluate.likelihood.score import Losses, Plan
from stages.formats.evaluation.document_losses import DocumentLosses
from stages.formats.evaluation.figures import significant
from stages.formats.model_folder import MODEL
from stages.runtime.entry import UserError
from stages.runtime.launch.config import LaunchConfig


@dataclass(frozen=True)
class ScoredSet:
    """One set scored by one model."""

    held_out: HeldOutSet
    model: ScoredModel
    plan: Plan
    losses: Losses

    @cached_property
    def scores(self) -> Scores:
        """The loss and size of each document. Raises UserError if a loss is not a finite number."""
        nats = self.plan.document_nats(self.losses)
        require_finite(nats, self.model)
        facts = self.held_out.facts
        return Scores(nats=nats, tokens=self.plan.tokens.lengths, bytes=facts.bytes, sources=facts.sources)

    @property
    def by_position(self) -> list[tuple[int, int, float]]:
        """First position, scored tokens and nats per token of each bucket of positions."""
        nats, tokens = self.plan.position_losses(self.losses)
        return mean_losses(nats, tokens, self.plan.sizes.buckets)

    @property
    def documents(self) -> DocumentLosses:
        """A row for each document."""
        facts, scores = self.held_out.facts, self.scores
        nats = np.array([significant(value) for value in scores.nats.tolist()])
        return DocumentLosses(
            self.held_out.name, self.model.name, facts.ids, facts.sources, facts.paths, facts.bytes, scores.tokens, nats
        )


def score_sets(
    models: Sequence[ScoredModel], sets: Sequence[HeldOutSet], batch_size: int, config: LaunchConfig
) -> list[ScoredSet]:
    """All sets of the first model, then those of the next."""
    pairs = [(held_out, model) for model in models for held_out in sets]
    plans = [Plan(model.tokens(held_out), model.sizes, batch_size) for held_out, model in pairs]
    tasks = [
        Task(model.folder, plan, f"scoring {held_out.name} by {model.name}")
        for (held_out, model), plan in zip(pairs, plans, strict=True)
    ]
    losses = score_tasks(tasks, config)
    return [ScoredSet(*pair, *result) for pair, result in zip(pairs, zip(plans, losses, strict=True), strict=True)]


def require_finite(nats: npt.NDArray[np.float64], model: ScoredModel) -> None:
    """Raise UserError if a document's loss is not a finite number."""
    faulty = int(np.count_nonzero(~np.isfinite(nats)))
    if faulty:
        remedy = "set evaluate.previous to null" if model.name == PREVIOUS else "remove it from evaluate.baselines"
        if model.folder == MODEL:
            remedy = "the training diverged; lower its learning rate and run `dvc repro`"
        raise UserError(
            f"{model.name}: the loss of {faulty} of {len(nats)} held-out documents is not a finite number: {remedy}"
        )
