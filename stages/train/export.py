"""The exported model folder: weights, config and tokenizer as `from_pretrained` loads them."""

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
    """A copy of the trained model with `weights`, on the CPU, without the padding of the vocabulary.

    It can be saved but not run, because it lacks the buffers that models do not save.
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
    """Write a model into an existing folder, with the file modes that the umask gives.

    Raises OSError if the disk is full, UserError if transformers refuses to save the model.
    """
    try:
        model.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # architectures raise different exceptions
        if isinstance(error, SafetensorError) and "No space left" in str(error):
            raise OSError(errno.ENOSPC, str(error), str(folder)) from error
        raise UserError(
            f"train: transformers cannot save the trained model: {describe_error(error)}; the checkpoints are kept, so "
            "fix the cause and run the same command to continue at this step"
        ) from None
    mode = (folder / "config.json").stat().st_mode
    for weights in folder.glob("*.safetensors"):
        weights.chmod(mode)  # safetensors makes them readable by their owner alone


def write_tokenizer(folder: Path, eos_id: int, source: Path = TOKENIZER) -> None:
    """Copy a tokenizer into a model folder, set to begin each text with `eos_id` and to pad on the left with it.

    In training every document follows an end-of-sequence id. Without it, `pipeline`, lm-eval and the card's example
    would begin texts in a way that the model never saw.
    """
    shutil.copytree(source, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
    tokenizer, config = read_json(source / TOKENIZER_JSON), read_json(source / TOKENIZER_CONFIG)
    eos = config["eos_token"]
    eos = str(eos["content"] if isinstance(eos, dict) else eos)  # transformers may write a token's properties too
    tokenizer["post_processor"] = begins_with(eos, eos_id)
    for key in ("add_bos_token", "add_eos_token"):  # they make transformers replace the post-processor
        config.pop(key, None)
    # Other tokenizer classes of transformers ignore the file's post-processor.
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left"}
    config |= {"bos_token": eos, "eos_token": eos, "pad_token": eos}
    text = json.dumps(tokenizer, indent=2, ensure_ascii=False)
    (folder / TOKENIZER_JSON).write_text(text + "\n", encoding="utf-8")
    write_json(folder / TOKENIZER_CONFIG, config)


def begins_with(token: str, number: int) -> dict[str, Any]:
    """The post-processor of tokenizer.json that puts one token in front of each text or pair of texts."""
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, other],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
