"""A trained model to start from: `train.start_from`.

It is a local folder or a full commit of a Hub repository (`owner/name@COMMIT`), because a branch can move. Weights are
read only from safetensors, and no code of the model is executed.
"""

from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel

from stages.formats.model_folder import TOKENIZER_JSON
from stages.formats.tokens import Manifest
from stages.runtime.errors import UserError, describe_error
from stages.runtime.hub import model_folder, require_weights

IDENTIFYING_FILES = ["config.json", "*.safetensors", "*.safetensors.index.json"]


def source_folder(start_from: str, download: bool = False) -> Path:
    """The folder with the model's files. A Hub commit is downloaded, or without `download` must be in the cache.

    Raises UserError if there is no such model or access is refused, UnavailableError if the Hub does not answer.
    """
    what = f"params.yaml: train.start_from = {start_from!r}"
    return model_folder(what, start_from, [*IDENTIFYING_FILES, TOKENIZER_JSON], download=download)[0]


def source_config(start_from: str, fields: dict[str, Any]) -> PreTrainedConfig:
    """The model's config with `fields` changed. Raises UserError if it lacks a field."""
    config: PreTrainedConfig = _from_pretrained(start_from, AutoConfig)
    for name, value in fields.items():
        if not hasattr(config, name) or (name == "model_type" and value != config.model_type):
            raise UserError(
                f"params.yaml: train.model.{name}: train.start_from = {start_from!r} is a `{config.model_type}`; set "
                "train.model to {}, or to the fields of its config.json to change"
            )
        setattr(config, name, value)
    return config


def load_source(
    start_from: str, config: PreTrainedConfig, vocabulary: Manifest, device: str | None = None
) -> PreTrainedModel:
    """Load the model in fp32; on the device `meta` only the headers of its weight files are read.

    Its special ids are set to those of the tokens, as its own may be ordinary tokens here.

    Raises UserError if it cannot be loaded, lacks weights, or has a smaller vocabulary than the tokens.
    """
    options = {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True, "device_map": device}
    loaded, info = _from_pretrained(start_from, AutoModelForCausalLM, config=config, **options)
    model = cast(PreTrainedModel, loaded)
    require_weights(f"params.yaml: train.start_from = {start_from!r}", info)
    if model.config.vocab_size < vocabulary.vocab_size:
        raise UserError(
            f"params.yaml: train.start_from = {start_from!r}: its vocabulary has {model.config.vocab_size} entries, "
            f"the tokens have {vocabulary.vocab_size}; use its tokenizer (tokenizer.kind: existing)"
        )
    model.generation_config = GenerationConfig()
    for owner in (model.config, model.generation_config):
        set_special_ids(owner, vocabulary)
    return model


def set_special_ids(config: PreTrainedConfig | GenerationConfig, vocabulary: Manifest) -> None:
    """Set the ids that begin and end texts, and the padding id if there is one, to the end-of-sequence id."""
    config.bos_token_id = config.eos_token_id = vocabulary.eos_id
    if getattr(config, "pad_token_id", None) is not None:
        config.pad_token_id = vocabulary.eos_id


def _from_pretrained(start_from: str, kind: Any, **options: Any) -> Any:
    """Load as the class `kind` of transformers. Raises UserError if it cannot."""
    try:
        return kind.from_pretrained(source_folder(start_from), trust_remote_code=False, **options)
    except UserError:
        raise
    except Exception as error:  # architectures and damaged files raise different exceptions
        raise UserError(
            f"params.yaml: train.start_from = {start_from!r}: cannot be loaded: {describe_error(error)}"
        ) from None
