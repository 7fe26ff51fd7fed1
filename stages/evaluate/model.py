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

from stages.formats.model_folder import weight_files
from stages.runtime.entry import UserError, first_line

logging.disable_progress_bar()  # reading a local file is quick


def open_config(folder: Path) -> PreTrainedConfig:
    """What a model folder says of its model, without the weights. Code in the folder is never executed.

    Raises UserError if the folder holds no model that transformers knows.
    """
    weight_files(folder)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: transformers cannot load this model: {first_line(error)}") from None
    return config


def open_model(folder: Path, device: str | None = None) -> PreTrainedModel:
    """The model in float32 for inference, on `device`; None: on a GPU where there is one.

    Code in the folder is never executed. Raises UserError if the folder holds no model that transformers can load.
    """
    weight_files(folder)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
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
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder}: transformers cannot load this model: {first_line(error)}") from None
    model: PreTrainedModel
    model, info = loaded
    if info["missing_keys"]:  # transformers would initialise them randomly
        raise UserError(f"{folder}: weights are missing: {', '.join(sorted(info['missing_keys']))}")
    return model


def open_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder; the name of a special token in a text is encoded as plain text.

    Raises UserError if there is none, or none that names its end-of-sequence token.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: transformers cannot load this tokenizer: {first_line(error)}") from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(f"{folder}: the tokenizer has no fast version (tokenizer.json)")
    if tokenizer.eos_token_id is None:
        raise UserError(f"{folder}: the tokenizer has no eos_token, with which every text begins")
    tokenizer.backend_tokenizer.encode_special_tokens = True
    return tokenizer


def position_limit(model: PreTrainedModel) -> int | None:
    """Tokens that the model can read at once; None where its positions have no limit."""
    return position_limit_of(model.config)


def position_limit_of(config: PreTrainedConfig) -> int | None:
    """The same from a model's configuration."""
    limit: int | None = getattr(config, "max_position_embeddings", None)
    return limit
