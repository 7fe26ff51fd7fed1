"""Trains a tokenizer, or takes over an existing one, and writes it as transformers reads it.

What is trained depends on the set of documents, not on their order or on the number of threads.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.compute as pc
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from stages.formats.documents import read_shard, shard_paths
from stages.formats.model_folder import TOKENIZER_CONFIG, TOKENIZER_JSON
from stages.formats.reports import read_json, write_json
from stages.runtime.entry import UserError, first_line

END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<|unknown|>"

NO_LIMIT = 10**30
"""`model_max_length` of a tokenizer without a limit, as transformers writes it: the limit is the model's."""

GPT4_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""After OpenAI's cl100k_base (tiktoken)."""


def sample(folder: Path, limit: int) -> Iterator[list[str]]:
    """Texts of a folder of documents, a batch per shard, in the order of their ids, up to `limit` bytes in total.

    Raises UserError if the first one is larger.
    """
    room = limit
    for shard in shard_paths(folder):
        texts = read_shard(shard, columns=["text"]).column("text")
        sizes = pc.cumulative_sum(pc.binary_length(texts)).to_numpy()
        fitting = int((sizes <= room).sum())
        if room == limit and 0 == fitting < len(texts):
            raise UserError(
                f"tokenizer.training_bytes = {limit:,}: no document fits, the first has {sizes[0]:,} bytes; raise it "
                "to at least that"
            )
        yield texts[:fitting].to_pylist()
        if fitting < len(texts):
            return
        room -= int(sizes[-1])


def train_bpe(batches: Iterable[list[str]], vocabulary_size: int, pattern: str) -> Tokenizer:
    """Byte-level byte-pair encoding (Radford et al. 2019, section 2.2): every text can be encoded, none is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(pattern)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(batches, trainer)
    return tokenizer


def pre_tokenizer(pattern: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut before merging, by the name in params."""
    match pattern:
        case "gpt2":
            return pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "digits":
            parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            return pre_tokenizers.Sequence(parts)
        case "gpt4":
            split = pre_tokenizers.Split(Regex(GPT4_PATTERN), "isolated")
            return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        case _:
            raise ValueError(f"no pattern `{pattern}`")


def characters(batches: Iterable[list[str]]) -> Tokenizer:
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
    """Write an existing tokenizer as transformers saves it. Raises UserError if it cannot be used."""
    if not existing.is_dir():
        raise UserError(f"tokenizer.folder: {existing} is not a folder; give one that `save_pretrained` wrote")
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
    return Tokenizer.from_file(str(folder / TOKENIZER_JSON))


def _require_same_parts(existing: Path, saved: Path, class_name: str) -> None:
    """Some classes of transformers build their own normalizer and pre-tokenizer, whatever tokenizer.json says."""
    if existing.is_file():
        before, after = read_json(existing), read_json(saved)
        for part in ("normalizer", "pre_tokenizer"):
            if before.get(part) != after.get(part):
                raise UserError(
                    f"tokenizer.folder: {existing}: transformers' {class_name} replaces its {part}, so it would give "
                    'other ids; set "tokenizer_class": "PreTrainedTokenizerFast" in its tokenizer_config.json'
                )
