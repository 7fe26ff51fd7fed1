"""Makes a tokenizer and writes it as transformers reads it: byte-level byte-pair encoding (Radford et al. 2019, section
2.2), one of characters, or an existing one.

Every text can be encoded, none is unknown. What is trained depends on the set of documents, not on their order. A
trained tokenizer is kept by the hash of its sample: an edit of a document outside of the sample trains nothing. An
existing one is kept by the hashes of its files: transformers is imported once for them.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from stages.formats.documents import read_shard
from stages.formats.model_folder import TOKENIZER_CONFIG, TOKENIZER_JSON
from stages.formats.reports import read_json, write_json
from stages.runtime.atomic import known_sha256, require_here
from stages.runtime.cache import SUMS, cache_key, cached, drop_unused
from stages.runtime.errors import UserError, first_line

END_OF_TEXT = "<|endoftext|>"

TRAINED = "trained_tokenizers"
"""The cache of tokenizers by the documents that they were trained on."""

TAKEN = "existing_tokenizers"
"""The cache of tokenizers by the files that they were taken from."""

OTHER_SUFFIXES = (".safetensors", ".bin")
"""Files of a model next to its tokenizer, which are large and not needed here."""

GPT4_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""After OpenAI's cl100k_base (tiktoken)."""

UNKNOWN_TOKEN = "<|unknown|>"

NO_LIMIT = 10**30
"""`model_max_length` of a tokenizer without a limit, as transformers writes it: the limit is the model's."""


def counted_documents(shards: Sequence[Path], limit: int) -> Iterator[tuple[Path, int]]:
    """Shards with how many of their first documents are counted: in the order of the ids, up to `limit` bytes of text.

    Raises UserError if the first one is larger.
    """
    room = limit
    for shard in shards:
        # Not `to_numpy`, which imports pandas.
        sizes = np.cumsum(pc.binary_length(read_shard(shard, ["text"]).column("text")).to_pylist())
        fitting = int((sizes <= room).sum())
        if room == limit and not fitting:
            raise UserError(
                f"tokenizer.training_bytes = {limit:,}: the first document alone has {sizes[0]:,} bytes; raise it "
                "to at least that"
            )
        yield shard, fitting
        if fitting < len(sizes):
            return
        room -= int(sizes[-1])


def shard_texts(shard: Path, count: int | None = None) -> list[str]:
    """The texts of a shard's first documents, or of all."""
    found: list[str] = read_shard(shard, ["text"]).column("text")[:count].to_pylist()
    return found


def train_on_documents(shards: Sequence[Path], limit: int, vocabulary_size: int, pattern: str) -> Tokenizer:
    """Byte-pair encoding of the first `limit` bytes of documents, from the cache if they are known.

    It has fewer tokens than `vocabulary_size` if no pair is left to merge. Raises UserError if no document fits.
    """
    counted = list(counted_documents(shards, limit))
    key = cache_key(pattern, str(vocabulary_size), *(f"{known_sha256(shard)} {count}" for shard, count in counted))
    entry = cached(TRAINED, key, partial(_train_on_sample, counted, vocabulary_size, pattern))
    tokenizer = Tokenizer.from_file(str(entry / TOKENIZER_JSON))
    drop_unused()
    return tokenizer


def _train_on_sample(counted: Sequence[tuple[Path, int]], vocabulary_size: int, pattern: str, folder: Path) -> None:
    train_bpe((shard_texts(*one) for one in counted), vocabulary_size, pattern).save(str(folder / TOKENIZER_JSON))


def train_bpe(batches: Iterable[Sequence[str]], vocabulary_size: int, pattern: str) -> Tokenizer:
    """Byte-pair encoding of texts."""
    tokenizer = _empty(models.BPE(), pattern)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(batches, trainer)
    return tokenizer


def _empty(model: models.BPE, pattern: str) -> Tokenizer:
    """A tokenizer that cuts text before merging by the pattern with that name in params; `ByteLevel` has GPT-2's."""
    first = {
        "digits": pre_tokenizers.Digits(individual_digits=True),
        "gpt4": pre_tokenizers.Split(Regex(GPT4_PATTERN), "isolated"),
    }.get(pattern)
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern != "gpt4")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_of]) if first else bytes_of
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def characters(batches: Iterable[Sequence[str]]) -> Tokenizer:
    """Every character of the texts is a token, in the order of their code points; others become `<|unknown|>`."""
    known: set[str] = set()
    for batch in batches:
        known.update(*batch)
    vocabulary = {token: number for number, token in enumerate([END_OF_TEXT, UNKNOWN_TOKEN, *sorted(known)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN_TOKEN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True), AddedToken(UNKNOWN_TOKEN, special=True)])
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
    if tokenizer.token_to_id(UNKNOWN_TOKEN) is not None:
        config["unk_token"] = UNKNOWN_TOKEN
    write_json(folder / TOKENIZER_CONFIG, config)


def take_over(existing: Path, folder: Path) -> Tokenizer:
    """Write an existing tokenizer as transformers saves it. Raises UserError if it cannot be used."""
    if not existing.is_dir():
        raise UserError(f"tokenizer.folder: {existing} is not a folder; give one that `save_pretrained` wrote")
    require_here(existing / TOKENIZER_JSON, *existing.glob("*.model"))
    files = sorted(file for file in existing.rglob("*") if file.is_file() and file.suffix not in OTHER_SUFFIXES)
    key = cache_key(*(fact for file in files for fact in (str(file.relative_to(existing)), known_sha256(file))))
    entry = cached(TAKEN, key, partial(_save_as_transformers, existing))
    for file in (file for file in entry.rglob("*") if file.is_file() and file.name != SUMS):
        place = folder / file.relative_to(entry)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    return Tokenizer.from_file(str(folder / TOKENIZER_JSON))


def _save_as_transformers(existing: Path, folder: Path) -> None:
    # Hundreds of modules: only if they are needed.
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
        raise UserError(f"tokenizer.folder: {existing} has no eos_token to close each document with")
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
