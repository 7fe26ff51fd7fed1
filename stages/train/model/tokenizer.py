"""The tokenizer of the model folder: it begins each text as training did, with the end-of-sequence id.

In training every document follows the end-of-sequence id of the one before it. A tokenizer that adds another id, or
none, would make `pipeline`, lm-eval and the card's example begin a text in a way that the model never saw.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from stages.formats.model_folder import TOKENIZER, TOKENIZER_CONFIG, TOKENIZER_JSON
from stages.formats.reports import read_json, write_json

OWN_BEGINNINGS = ("add_bos_token", "add_eos_token")
"""Keys by which transformers would replace the post-processor."""


def write_tokenizer(folder: Path, eos_id: int, source: Path = TOKENIZER) -> None:
    """Copy a tokenizer into a model folder, set to begin each text with `eos_id` and to pad on the left with it."""
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
