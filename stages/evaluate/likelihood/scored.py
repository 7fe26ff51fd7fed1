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
from stages.evaluate.likelihood.windows import WindowSizes
from stages.formats.evaluation.document_losses import DocumentLosses
from stages.formats.model_folder import MODEL
from stages.formats.reports import significant
from stages.runtime.entry import UserError, whole_number
from stages.runtime.launch.config import LaunchConfig

BATCH_VARIABLE = "PARROTFLOW_EVALUATE_BATCH"

GPU_WINDOWS = 16

CORE_TOKENS = 1024
"""That a core reads at once. What a layer computes for more of them leaves the core's cache, and its memory is handed
out by the kernel again and again. Two cores of an AMD EPYC with 1, 4 and 8 windows: the default model (windows of 256)
took 1.20, 1.01 and 1.13 s for 160 kB of text, a GPT-2 of 124M (windows of 1,024) 15.0, 17.1 and 27.1 s for 30 kB.
"""


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


def score_sets(models: Sequence[ScoredModel], sets: Sequence[HeldOutSet], config: LaunchConfig) -> list[ScoredSet]:
    """All sets of the first model, then those of the next."""
    pairs = [(held_out, model) for model in models for held_out in sets]
    batch_sizes = [windows_at_once(model.sizes, config.device_type) for _, model in pairs]
    plans = [
        Plan(model.tokens(held_out), model.sizes, batch_size)
        for (held_out, model), batch_size in zip(pairs, batch_sizes, strict=True)
    ]
    tasks = [
        Task(model.folder, plan, f"scoring {held_out.name} by {model.name}")
        for (held_out, model), plan in zip(pairs, plans, strict=True)
    ]
    losses = score_tasks(tasks, config)
    return [ScoredSet(*pair, *result) for pair, result in zip(pairs, zip(plans, losses, strict=True), strict=True)]


def windows_at_once(sizes: WindowSizes, device_type: str) -> int:
    """How many full windows a GPU or a core scores at once, unless the environment says it."""
    default = GPU_WINDOWS if device_type == "cuda" else max(1, CORE_TOKENS // sizes.context_length)
    return whole_number(BATCH_VARIABLE, default)


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
