"""Opens a trained model folder."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from stages.formats.architecture import learned_positions
from stages.formats.model_folder import MODEL, TRAINING_RUN, weight_files
from stages.formats.reports import read_json
from stages.runtime.errors import UserError, first_line
from stages.runtime.hub import require_weights

logging.disable_progress_bar()  # reading a local file is quick


def open_config(folder: Path) -> PreTrainedConfig:
    """Open the config of a model folder. Code in the folder is never executed.

    Raises UserError if the folder contains no model that transformers knows.
    """
    weight_files(folder)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder}: transformers cannot load this model: {first_line(error)}") from None
    if getattr(config, "vocab_size", None) is None:
        raise UserError(f"{folder}: not a language model: its configuration names no vocabulary")
    return config


def open_model(folder: Path, device: str = "") -> PreTrainedModel:
    """Open a model in float32 for inference, on a GPU if there is one; on the device `meta` its weights are not read.

    Code in the folder is never executed. Raises UserError if the folder contains no model that transformers can load.
    """
    weight_files(folder)
    # Not `cuda`, which transformers resolves to the first GPU of the machine.
    device = device or (f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            device_map=device,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder}: transformers cannot load this model: {first_line(error)}") from None
    model: PreTrainedModel
    model, info = loaded
    require_weights(str(folder), info)
    if device != "meta":
        _require_causal(folder, model)
    return model


@torch.inference_mode()
def _require_causal(folder: Path, model: PreTrainedModel) -> None:
    """Raise UserError if a model's logits depend on later tokens, as BERT's do."""
    ids = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]], device=model.device) % model.config.vocab_size
    if (position_limit(model.config) or len(ids[0])) < len(ids[0]) or torch.equal(*ids):
        return
    first, second = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    if (first - second).abs().max() > 1e-4 * first.abs().max():  # rounding causes smaller differences
        raise UserError(f"{folder}: not a causal language model: what it predicts depends on later tokens")


def open_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Open the tokenizer of a model folder. It encodes names of special tokens in a text as plain text.

    Raises UserError if the tokenizer cannot be loaded, has no fast version or no end-of-sequence token.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: transformers cannot load this tokenizer: {first_line(error)}") from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(f"{folder}: the tokenizer has no fast version (tokenizer.json)")
    if tokenizer.eos_token_id is None:
        raise UserError(f"{folder}: the tokenizer has no eos_token, which starts every text")
    tokenizer.backend_tokenizer.encode_special_tokens = True
    return tokenizer


def note_untrained_positions(length: int, remedy: str) -> None:
    """Print a note, with `remedy`, if `length` exceeds the length of the trained model's training sequences."""
    record = MODEL / TRAINING_RUN
    trained = read_json(record)["sequence_length"] if record.is_file() else length
    if length > trained:
        print(
            f"note: {MODEL} is scored in windows of {length} tokens, but was trained on sequences of {trained} "
            f"(train.sequence_length), so later positions may be untrained; {remedy}",
            flush=True,
        )


def position_limit(config: PreTrainedConfig) -> int | None:
    """Tokens that a model can read at once; None if its positions have no limit.

    Learned positions beyond its training sequences do not count; models of earlier versions have them.
    """
    limit: int | None = getattr(config, "max_position_embeddings", None)
    record = Path(config.name_or_path or "") / TRAINING_RUN
    run = read_json(record) if limit and record.is_file() else {}
    # With `start_from`, the earlier training may have reached all positions.
    if limit is None or run.get("sequence_length", limit) >= limit or "start_from" in run:
        return limit
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return int(run["sequence_length"]) if learned_positions(model) else limit
