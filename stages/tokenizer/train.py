"""A tokenizer of characters, or an existing one; and how a tokenizer is written, as transformers reads it."""

import os
import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from stages.formats.model_folder import TOKENIZER_CONFIG, TOKENIZER_JSON
from stages.formats.reports import read_json, write_json
from stages.runtime.atomic import file_sha256
from stages.runtime.cache import SUMS, cache_key, cached, drop_unused
from stages.runtime.entry import UserError, first_line
from stages.tokenizer.bpe import END_OF_TEXT

UNKNOWN = "<|unknown|>"

TAKEN_OVER = "taken_over"
"""The cache of existing tokenizers, as transformers saves them."""

WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
"""Of a model whose folder has the tokenizer too: large, and none of its business."""

NO_LIMIT = 10**30
"""`model_max_length` of a tokenizer without a limit, as transformers writes it: the limit is the model's."""


def characters(batches: Iterable[Sequence[str]]) -> Tokenizer:
    """Every character of the texts is a token, in the order of their code points; others become `<|unknown|>`."""
    known: set[str] = set()
    for batch in batches:
        known.update(*batch)
    vocabulary = {token: number for number, token in enumerate([END_OF_TEXT, UNKNOWN, *sorted(known)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True), AddedToken(UNKNOWN, special=True)])
    return tokenizer


def save_trained(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    (folder / TOKENIZER_JSON).write_text(tokenizer.to_str(pretty=True) + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": NO_LIMIT,
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    if tokenizer.token_to_id(UNKNOWN) is not None:
        config["unk_token"] = UNKNOWN
    write_json(folder / TOKENIZER_CONFIG, config)


def take_over(existing: Path, folder: Path) -> Tokenizer:
    """Write an existing tokenizer as transformers saves it, once for its files: the stage runs whenever the documents
    change. Raises UserError if it cannot be used."""
    if not existing.is_dir():
        raise UserError(f"tokenizer.folder: {existing} is not a folder; give one that `save_pretrained` wrote")
    files = sorted(file for file in existing.rglob("*") if file.is_file() and file.suffix not in WEIGHTS)
    key = cache_key(*(fact for file in files for fact in (str(file.relative_to(existing)), file_sha256(file))))
    entry = cached(TAKEN_OVER, key, partial(_save_as_transformers_does, existing))
    ignored = shutil.ignore_patterns(SUMS)
    shutil.copytree(entry, folder, ignore=ignored, copy_function=shutil.copyfile, dirs_exist_ok=True)
    drop_unused(TAKEN_OVER)
    return Tokenizer.from_file(str(folder / TOKENIZER_JSON))


def _save_as_transformers_does(existing: Path, folder: Path) -> None:
    # Hundreds of modules: only where they are needed.
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(existing), trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = first_line(error)
        raise UserError(
            f"tokenizer.folder: {existing} holds no tokenizer that transformers can load: {reason}"
        ) from None
    if not tokenizer.is_fast:
        raise UserError(f"tokenizer.folder: {existing} has no fast version (tokenizer.json), which encoding needs")
    if tokenizer.eos_token is None:
        raise UserError(f"tokenizer.folder: {existing} names no eos_token, which closes each document")
    tokenizer.save_pretrained(str(folder))
    _require_same_parts(existing / TOKENIZER_JSON, folder / TOKENIZER_JSON, type(tokenizer).__name__)
    config = read_json(folder / TOKENIZER_CONFIG)
    config.pop("name_or_path", None)
    write_json(folder / TOKENIZER_CONFIG, config)


def _require_same_parts(existing: Path, saved: Path, class_name: str) -> None:
    """Some classes of transformers build their own normalizer and pre-tokenizer and ignore those in tokenizer.json."""
    if existing.is_file():
        before, after = read_json(existing), read_json(saved)
        for part in ("normalizer", "pre_tokenizer"):
            if before.get(part) != after.get(part):
                raise UserError(
                    f"tokenizer.folder: {existing}: transformers' {class_name} replaces its {part}, so it would give "
                    'other ids; set "tokenizer_class": "PreTrainedTokenizerFast" in its tokenizer_config.json'
                )
