"""The model folder that a training leaves: weights, config and tokenizer as `from_pretrained` loads them."""

import errno
import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from stages.formats.model_folder import TOKENIZER, TOKENIZER_CONFIG, TOKENIZER_JSON
from stages.formats.reports import read_json, write_json
from stages.formats.tokens import Manifest
from stages.runtime.errors import UserError, describe_error
from stages.train.compute.model.loss import CausalLoss


def plain_model(trained: CausalLoss, weights: dict[str, Tensor], vocabulary: Manifest) -> PreTrainedModel:
    """A model like the trained one with `weights`, on the CPU, without the padding of the vocabulary.

    It can be saved, and does not compute: it is made without weights, takes these, and has none of the tables that
    models do not save.
    """
    with torch.device("meta"):
        plain: PreTrainedModel = type(trained.model)(deepcopy(trained.model.config))
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    plain.resize_token_embeddings(vocabulary.vocab_size)
    plain.generation_config = trained.model.generation_config
    plain.generation_config.pad_token_id = vocabulary.eos_id  # as `write_tokenizer` pads
    plain.config.use_cache = True
    return plain


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write a model into an existing folder; its files have the modes that the umask gives.

    Raises OSError on a full disk, UserError if transformers refuses to save the model.
    """
    try:
        model.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # Each architecture refuses in a way of its own.
        if isinstance(error, SafetensorError) and "No space left" in str(error):
            raise OSError(errno.ENOSPC, str(error), str(folder)) from error
        raise UserError(
            f"train: transformers cannot save the trained model: {describe_error(error)}; the checkpoints are kept, so "
            "fix the cause and run the same command to continue at this step"
        ) from None
    mode = (folder / "config.json").stat().st_mode
    for weights in folder.glob("*.safetensors"):
        weights.chmod(mode)  # safetensors makes them readable by their owner alone


OWN_BEGINNINGS = ("add_bos_token", "add_eos_token")
"""Keys by which transformers would replace the post-processor."""


def write_tokenizer(folder: Path, eos_id: int, source: Path = TOKENIZER) -> None:
    """Copy a tokenizer into a model folder, set to begin each text with `eos_id` and to pad on the left with it.

    In training every document follows the end-of-sequence id of the one before it. With another beginning, or none,
    `pipeline`, lm-eval and the card's example would begin a text in a way that the model never saw.
    """
    shutil.copytree(source, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
    tokenizer, config = read_json(source / TOKENIZER_JSON), read_json(source / TOKENIZER_CONFIG)
    eos = token_text(config["eos_token"])
    tokenizer["post_processor"] = begins_with(eos, eos_id)
    for key in OWN_BEGINNINGS:
        config.pop(key, None)
    # Other classes of transformers build a post-processor of their own and ignore the file's.
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left"}
    config |= {"bos_token": eos, "eos_token": eos, "pad_token": eos}
    text = json.dumps(tokenizer, indent=2, ensure_ascii=False)
    (folder / TOKENIZER_JSON).write_text(text + "\n", encoding="utf-8")
    write_json(folder / TOKENIZER_CONFIG, config)


def token_text(token: Any) -> str:
    """The text of a special token, which transformers writes as it is or with its properties."""
    return str(token["content"] if isinstance(token, dict) else token)


def begins_with(token: str, number: int) -> dict[str, Any]:
    """The post-processor of `tokenizer.json` that puts one token in front of each text, or pair of texts."""
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, other],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
