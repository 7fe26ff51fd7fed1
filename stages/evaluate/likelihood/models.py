"""The models that are scored: the one that was trained, and the baselines that it is compared with.

A baseline is a folder or a commit of a Hub repository, `owner/name@COMMIT`. Weights are read from safetensors alone,
and no code of a model's is run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.evaluate.likelihood.documents import HeldOutSet, Tokens, WindowSizes, encoded
from stages.evaluate.model import note_untrained_positions, open_config, open_tokenizer, position_limit
from stages.evaluate.params import EvaluateParams
from stages.formats.model_folder import MODEL, TOKENIZER_FILES
from stages.runtime.errors import UserError
from stages.runtime.hub import model_folder
from stages.runtime.stage import require_listed

FILES = ["config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES, "vocab.*", "merges.txt"]
FILES += ["special_tokens_map.json", "added_tokens.json", "tokenizer.model"]


@dataclass(frozen=True)
class ScoredModel:
    """A model, and how it reads documents."""

    name: str
    """As params.yaml has it; `model` is the one that was trained."""
    folder: Path
    sizes: WindowSizes
    vocabulary: int
    revision: str | None = None
    """The commit on the Hub; None for a folder."""

    def tokens(self, held_out: HeldOutSet) -> Tokens:
        """A set's documents in ids of the model's own tokenizer. Raises UserError where they do not fit the model."""
        held_out.require_text()
        tokenizer = open_tokenizer(self.folder)
        # Our training begins each document after an end-of-sequence id; of others, what they know as a beginning.
        own_first_id = None if self.folder == MODEL else tokenizer.bos_token_id
        tokens = encoded(held_out.texts, tokenizer, tokenizer.eos_token_id if own_first_id is None else own_first_id)
        if (largest := max(int(tokens.ids.max()), tokens.first_id)) >= self.vocabulary:
            raise UserError(f"{self.folder}: its tokenizer gives the id {largest}, the model knows {self.vocabulary}")
        return tokens


def trained_model(params: EvaluateParams) -> ScoredModel:
    """The model that was trained. Raises UserError where the parameters exceed its positions or skip text."""
    config = open_config(MODEL)
    limit = position_limit(config)
    context_length = params.context_length or limit
    if context_length is None:
        raise UserError("evaluate.context_length = null: this model's positions have no limit; set a number of tokens")
    if limit is not None and context_length > limit:
        raise UserError(f"evaluate.context_length = {context_length}: the model reads at most {limit} tokens")
    note_untrained_positions(context_length, "a shorter evaluate.context_length leaves them out")
    stride = params.stride or default_stride(context_length)
    if stride > context_length:
        raise UserError(f"evaluate.stride = {stride}: more than the context of {context_length} tokens would skip text")
    return ScoredModel(str(MODEL), MODEL, WindowSizes(context_length, stride), config.vocab_size)


def default_stride(context_length: int) -> int:
    """Three quarters of the context: each token but a document's first has at least a quarter before it."""
    return max(1, context_length * 3 // 4)


def baseline_models(names: Sequence[str], trained: ScoredModel) -> list[ScoredModel]:
    """The models of `evaluate.baselines`; those of the Hub are downloaded.

    They read windows of as many tokens as the trained model does, or of as many as they can.
    """
    for name in sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"params.yaml: evaluate.baselines: {name} is there twice")
    if str(MODEL) in names:
        raise UserError(f"params.yaml: evaluate.baselines: {MODEL}: the report uses this name; write ./{MODEL}")
    return [_model(name, trained.sizes) for name in names]


def _model(name: str, sizes: WindowSizes) -> ScoredModel:
    folder, commit = model_folder(f"params.yaml: evaluate.baselines: {name}", name, FILES)
    if commit is None:
        require_listed("evaluate.baselines", folder)
    config = open_config(folder)
    limit = position_limit(config)
    if limit is not None and limit < sizes.context_length:
        sizes = WindowSizes(limit, min(sizes.stride, default_stride(limit)))
    return ScoredModel(name, folder, sizes, config.vocab_size, commit)
