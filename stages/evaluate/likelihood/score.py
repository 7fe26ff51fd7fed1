"""Scores every token of each held-out set with the trained model and the baselines.

A baseline is a folder or a commit of a Hub repository, `owner/name@COMMIT`. Weights are read only from safetensors, and
no code of a model is executed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from stages.evaluate.likelihood.documents import (
    HeldOutSet,
    ScoringPlan,
    Tokens,
    Window,
    WindowSizes,
    encoded,
    lost_share,
    scored_per_bucket,
)
from stages.evaluate.model import note_untrained_positions, open_config, open_model, open_tokenizer, position_limit
from stages.evaluate.params import EvaluateParams
from stages.formats.architecture import has_plain_head
from stages.formats.evaluation.intervals import Floats
from stages.formats.model_folder import MODEL, TOKENIZER_FILES
from stages.formats.reports import significant
from stages.runtime.errors import UserError, whole_number
from stages.runtime.hub import model_folder
from stages.runtime.workers import counted

FILES = ["config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES, "vocab.*", "merges.txt"]
FILES += ["special_tokens_map.json", "added_tokens.json", "tokenizer.model"]


@dataclass(frozen=True)
class ScoredModel:
    """A model, and how it reads documents."""

    name: str
    """`model` for the trained model; a baseline's name as in params.yaml."""
    folder: Path
    sizes: WindowSizes
    vocabulary: int
    revision: str | None = None
    """The commit on the Hub; None for a folder."""

    def tokens(self, held_out: HeldOutSet) -> Tokens:
        """A set's documents as ids of the model's tokenizer. Raises UserError if an id exceeds its vocabulary."""
        held_out.require_text()
        tokenizer = open_tokenizer(self.folder)
        # Our training begins documents after an end-of-sequence id; a baseline may have a beginning-of-sequence id.
        bos_id = None if self.folder == MODEL else tokenizer.bos_token_id
        first_id = tokenizer.eos_token_id if bos_id is None else bos_id
        tokens = encoded(held_out.texts, tokenizer, first_id, held_out.prompts)
        if (largest := max(int(tokens.ids.max()), tokens.first_id)) >= self.vocabulary:
            raise UserError(f"{self.folder}: its tokenizer has the id {largest}, the model {self.vocabulary} ids")
        return tokens


def trained_model(params: EvaluateParams) -> ScoredModel:
    """The trained model. Raises UserError if windows exceed its positions or skip text."""
    config = open_config(MODEL)
    limit = position_limit(config)
    context_length = params.context_length or limit
    if context_length is None:
        raise UserError("evaluate.context_length = null: this model's positions have no limit; set a number of tokens")
    if limit is not None and context_length > limit:
        raise UserError(
            f"evaluate.context_length = {context_length}: the model reads at most {limit} tokens; lower it, or set null"
        )
    note_untrained_positions(context_length, "a shorter evaluate.context_length leaves them out")
    stride = params.stride or default_stride(context_length)
    if stride > context_length:
        raise UserError(f"evaluate.stride = {stride}: a stride above the context of {context_length} tokens skips text")
    return ScoredModel(str(MODEL), MODEL, WindowSizes(context_length, stride), config.vocab_size)


def default_stride(context_length: int) -> int:
    """Three quarters of the context, so that later windows have at least a quarter of it as context."""
    return max(1, context_length * 3 // 4)


def baseline_models(names: Sequence[str], trained: ScoredModel) -> list[ScoredModel]:
    """The models of `evaluate.baselines`; those on the Hub are downloaded.

    Their windows are as long as the trained model's, or as long as their positions allow.
    """
    models = []
    for name in names:
        sizes = trained.sizes
        folder, commit = model_folder(f"params.yaml: evaluate.baselines: {name}", name, FILES)
        config = open_config(folder)
        limit = position_limit(config)
        if limit is not None and limit < sizes.context_length:
            sizes = WindowSizes(limit, min(sizes.stride, default_stride(limit)))
        models.append(ScoredModel(name, folder, sizes, config.vocab_size, commit))
    return models


WINDOWS_VARIABLE = "PARROTFLOW_EVALUATE_BATCH"

GPU_TOKENS = 2**15
"""Tokens that a GPU reads at once, unless the environment sets the number of windows. Not measured."""

CPU_CHUNK_TOKENS = 1024
"""Tokens that a CPU reads at once. Activations of more tokens do not fit into its cache."""

NOT_SCORED = -100
"""The target id of positions that are not scored."""

SCORED_GPU_LOGITS, MIN_SCORED_GPU_ROWS = 2**28, 1024
"""Logits that a GPU computes at once (1 GiB), and the minimum of positions, as measured for training. On a CPU the rows
differ from training, because no gradient of the head is summed here."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The loss and size of each document; every array has shape (documents,)."""

    nats: Floats
    """Negative log-likelihood."""
    tokens: npt.NDArray[np.int64]
    """Scored tokens, including the closing end-of-sequence id."""
    bytes: npt.NDArray[np.int64]
    """UTF-8 bytes of the text."""
    sources: Sequence[str]
    """The package, repository or data set of each document."""

    @property
    def columns(self) -> Floats:
        """nats, tokens and bytes; shape (documents, 3)."""
        return np.stack([self.nats, self.tokens, self.bytes], axis=1).astype(np.float64)

    @property
    def lengths(self) -> list[str]:
        """The bucket of each document's length: powers of two of tokens, padded with zeros so that they sort."""
        lower = [2 ** (int(tokens).bit_length() - 1) for tokens in self.tokens]
        digits = max(6, len(str(max(lower, default=0))))
        return [f"{first:0{digits}d}-{2 * first - 1:0{digits}d}" for first in lower]


@dataclass(frozen=True, slots=True)
class Losses:
    """Negative log-likelihoods in nats."""

    documents: Floats
    """Shape (documents,)."""
    positions: Floats
    """Sums over all windows for each bucket of positions; shape (buckets,)."""


@dataclass(frozen=True)
class ScoredSet:
    """One set scored by one model."""

    held_out: HeldOutSet
    model: ScoredModel
    plan: ScoringPlan
    losses: Losses

    @cached_property
    def scores(self) -> Scores:
        """The loss and size of each document. Raises UserError if a loss is not a finite number."""
        nats = self.losses.documents
        require_finite(nats, self.model)
        facts = self.held_out.facts
        return Scores(nats, self.plan.tokens.scored, facts["bytes"].to_numpy(), facts["source"].tolist())

    @cached_property
    def lost_share(self) -> float:
        """As `documents.lost_share`."""
        return lost_share(self.held_out.texts, self.plan.tokens, open_tokenizer(self.model.folder))

    @property
    def by_position(self) -> list[tuple[int, int, float]]:
        """First position, scored tokens and nats per token of each bucket with scored tokens."""
        tokens = scored_per_bucket(self.plan)
        rows = zip(self.plan.sizes.buckets.tolist(), tokens.tolist(), self.losses.positions.tolist(), strict=True)
        return [(position, count, significant(loss / count)) for position, count, loss in rows if count]


def score_sets(models: Sequence[ScoredModel], sets: Sequence[HeldOutSet]) -> list[ScoredSet]:
    """Score all sets with the first model, then with the next. Each model is opened once."""
    scored, tokens = [], GPU_TOKENS if torch.cuda.is_available() else CPU_CHUNK_TOKENS
    for named in models:
        model = open_model(named.folder)
        windows = whole_number(WINDOWS_VARIABLE) or max(1, tokens // named.sizes.context_length)
        for held_out in sets:
            plan = ScoringPlan(named.tokens(held_out), named.sizes, windows)
            losses = score_batches(model, plan, f"scoring {held_out.name} by {named.name}")
            scored.append(ScoredSet(held_out, named, plan, losses))
    return scored


def require_finite(nats: Floats, model: ScoredModel) -> None:
    """Raise UserError if a document's loss is not a finite number."""
    faulty = int(np.count_nonzero(~np.isfinite(nats)))
    if faulty:
        remedy = "remove it from evaluate.baselines"
        if model.folder == MODEL:
            remedy = "the training diverged; lower its learning rate and run `dvc repro`"
        raise UserError(
            f"{model.name}: the loss of {faulty} of {len(nats)} held-out documents is not a finite number: {remedy}"
        )


def score_batches(model: PreTrainedModel, plan: ScoringPlan, description: str = "scoring") -> Losses:
    """Score every window of the plan."""
    scorer = Scorer(model)
    documents = np.zeros(len(plan.tokens.lengths), dtype=np.float64)
    positions = np.zeros(plan.sizes.context_length, dtype=np.float64)
    for batch in counted(plan.batches, description, "batches", len(plan.batches)):
        nats = scorer.token_losses(plan.tokens, batch)
        np.add.at(documents, [window.document for window in batch], nats.sum(dim=1).cpu().numpy())
        context = min(window.context for window in batch)
        positions[context : context + nats.shape[1]] += nats.sum(dim=0).cpu().numpy()
    return Losses(documents, np.add.reduceat(positions, plan.sizes.buckets))


class Scorer:
    """Scores windows with one model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.plain_head = has_plain_head(model)

    @torch.inference_mode()
    def token_losses(self, tokens: Tokens, batch: list[Window]) -> torch.Tensor:
        """Negative log-likelihoods in nats of the positions from the shortest context on, 0 for those not scored.

        float64, shape (windows, positions).
        """
        longest = max(window.length for window in batch)
        context = min(window.context for window in batch)
        inputs = np.full((len(batch), longest), tokens.first_id, dtype=np.int64)
        targets = np.full((len(batch), longest), NOT_SCORED, dtype=np.int64)
        for row, window in enumerate(batch):
            read_window(tokens, window, inputs[row], targets[row])
        expected = torch.from_numpy(targets[:, context:])
        scored = (expected != NOT_SCORED).to(self.model.device)
        losses = torch.zeros(expected.shape, dtype=torch.float64, device=self.model.device)
        losses[scored] = self._losses(torch.from_numpy(inputs), expected, scored).double()
        return losses

    def _losses(self, inputs: torch.Tensor, expected: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
        """The losses of the scored positions, in order; `expected` and `scored` are (windows, last positions)."""
        # Padding follows the text, and a causal model cannot attend to it, so no mask is needed.
        inputs, expected = inputs.to(self.model.device), expected.to(self.model.device)[scored]
        kept = scored.shape[1]
        if not self.plain_head:
            logits = self.model(input_ids=inputs, logits_to_keep=kept, use_cache=False).logits[scored]
            return cross_entropy(logits.float(), expected, reduction="none")
        hidden = self.model.base_model(input_ids=inputs, use_cache=False)[0][:, -kept:][scored]
        head = self.model.get_output_embeddings()
        # The logits of a batch are its largest tensor. On a CPU, parts of as many rows as the head is wide need little
        # memory, and reading the head again for each takes no longer than writing the logits.
        rows = hidden.shape[1]
        if hidden.device.type != "cpu":
            rows = max(MIN_SCORED_GPU_ROWS, SCORED_GPU_LOGITS // head.weight.shape[0])
        parts = zip(torch.split(hidden, rows), torch.split(expected, rows), strict=True)
        return torch.cat([cross_entropy(head(part).float(), ids, reduction="none") for part, ids in parts])


def read_window(tokens: Tokens, window: Window, inputs: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> None:
    """Fill a row of input ids and of target ids of the scored positions."""
    first = int(tokens.starts[window.document])
    read_from = max(window.start - 1, 0)
    ids = tokens.ids[first + read_from : first + window.stop]
    # Position p reads token p - 1 of the document; position 0 reads `first_id`, which `inputs` already holds.
    skipped = 1 if window.start == 0 else 0
    inputs[skipped : window.length] = ids[:-1]
    targets[window.context : window.length] = ids[window.scored_from - read_from :]
