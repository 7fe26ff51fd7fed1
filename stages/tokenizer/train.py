"""Makes a tokenizer and writes it as transformers reads it: byte-level byte-pair encoding (Radford et al. 2019, section
2.2), one of characters, or an existing one.

Byte-pair encoding is trained on how often each word occurs in documents. Every text can be encoded, none is unknown.
What is trained depends on the set of documents, not on their order. Counting is most of the work, so each shard is
counted once: an edit costs one shard and the merges.

The library ffbpe counts and merges. The trainer of `tokenizers`, more than twice as slow, is the reference: it gives
the same bytes (tests/tokenizer/test_train.py), and does the work on platforms for which ffbpe has no wheel.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow.compute as pc
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from stages.formats.documents import read_shard, shard_paths
from stages.formats.model_folder import TOKENIZER_CONFIG, TOKENIZER_JSON
from stages.formats.reports import read_json, write_json
from stages.runtime.atomic import file_sha256
from stages.runtime.cache import SUMS, cache_key, cached, drop_unused, map_cached, shard_sha256
from stages.runtime.entry import UserError, first_line

if TYPE_CHECKING:
    from ffbpe import PreTokenizer, WordCounter

END_OF_TEXT = "<|endoftext|>"

WORDS = "word_counts"
"""The cache of counted shards, and the file in each of its entries."""

TRAINED = "trained_tokenizers"
"""The cache of tokenizers by the documents that they were trained on."""

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""After OpenAI's GPT-2, as `pre_tokenizers.ByteLevel` has it."""

DIGITS_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
"""GPT-2's between the digits, each of which is a word."""

GPT4_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""After OpenAI's cl100k_base (tiktoken)."""

PATTERNS = {"gpt2": GPT2_PATTERN, "digits": DIGITS_PATTERN, "gpt4": GPT4_PATTERN}

UNKNOWN = "<|unknown|>"

TAKEN_OVER = "taken_over"
"""The cache of existing tokenizers, as transformers saves them."""

WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
"""Of a model whose folder has the tokenizer too: large, and none of its business."""

NO_LIMIT = 10**30
"""`model_max_length` of a tokenizer without a limit, as transformers writes it: the limit is the model's."""


class CountedPart(NamedTuple):
    """The documents of a shard that are counted: the first ones."""

    shard: Path
    documents: int

    def texts(self) -> list[str]:
        """Their texts."""
        texts: list[str] = read_shard(self.shard, columns=["text"]).column("text")[: self.documents].to_pylist()
        return texts


def parts(folder: Path, limit: int) -> Iterator[CountedPart]:
    """The documents of a folder in the order of their ids, up to `limit` bytes of text in total.

    Raises UserError if the first one is larger.
    """
    room = limit
    for shard in shard_paths(folder):
        texts = read_shard(shard, columns=["text"]).column("text")
        # Not `to_numpy`, which imports pandas.
        sizes = np.cumsum(pc.binary_length(texts).to_pylist())
        fitting = int((sizes <= room).sum())
        if room == limit and 0 == fitting < len(texts):
            raise UserError(
                f"tokenizer.training_bytes = {limit:,}: no document fits, the first has {sizes[0]:,} bytes; raise it "
                "to at least that"
            )
        yield CountedPart(shard, fitting)
        if fitting < len(texts):
            return
        room -= int(sizes[-1])


def train_on_documents(folder: Path, limit: int, vocabulary_size: int, pattern: str) -> Tokenizer:
    """Byte-pair encoding of the first `limit` bytes of a folder of documents, whose shards are counted once.

    Where an edit is of none of these documents, the tokenizer is taken from the cache. It has fewer tokens than
    `vocabulary_size` where no pair is left to merge. Raises UserError if no document fits.
    """
    counted = list(parts(folder, limit))
    if find_spec("ffbpe") is None:
        return train_by_reference((part.texts() for part in counted), vocabulary_size, pattern)
    key = cache_key(pattern, str(vocabulary_size), *(_part_key(pattern, part) for part in counted))
    entry = cached(TRAINED, key, partial(_train_on_parts, counted, vocabulary_size, pattern))
    tokenizer = Tokenizer.from_file(str(entry / TOKENIZER_JSON))
    for kind in (WORDS, TRAINED):
        drop_unused(kind)
    return tokenizer


def _train_on_parts(counted: Sequence[CountedPart], vocabulary_size: int, pattern: str, folder: Path) -> None:
    entries = map_cached(WORDS, counted, partial(_part_key, pattern), partial(_count_part, pattern))
    cutter = _cutter(pattern)
    words = cutter.word_counter()
    for entry in entries:
        words.merge(cutter.load_word_counter(entry / WORDS))
    _merged(words, vocabulary_size, pattern).save(str(folder / TOKENIZER_JSON))


def train_by_reference(batches: Iterable[Sequence[str]], vocabulary_size: int, pattern: str) -> Tokenizer:
    """Byte-pair encoding of texts by the library `tokenizers`: the same bytes."""
    tokenizer = _empty(models.BPE(), pattern)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(batches, trainer)
    return tokenizer


def _part_key(pattern: str, part: CountedPart) -> str:
    return cache_key(pattern, shard_sha256(part.shard), str(part.documents))


def _count_part(pattern: str, part: CountedPart, folder: Path) -> None:
    words = _cutter(pattern).word_counter()
    words.add_batch(part.texts())
    folder.mkdir(parents=True, exist_ok=True)
    words.save(folder / WORDS)


def _cutter(pattern: str) -> "PreTokenizer":
    from ffbpe import PreTokenizer

    return PreTokenizer([], pat_str=PATTERNS[pattern])


def _merged(words: "WordCounter", vocabulary_size: int, pattern: str) -> Tokenizer:
    """Merge the most frequent pair of tokens again and again; of equally frequent ones that with the smallest ids."""
    from ffbpe import BpeTrainer

    trainer = BpeTrainer([END_OF_TEXT], initial_alphabet="byte_level", tie_break="smallest_pair_id")
    trainer.add_word_counter(words)
    trainer.train(vocabulary_size)
    with TemporaryDirectory() as folder:
        vocabulary, merges = Path(folder) / "vocab.json", Path(folder) / "merges.txt"
        trainer.save_files(vocabulary, merges, format="gpt2")
        # A line is `LEFT RIGHT => COUNT`, and no token holds a space: each byte has a visible letter.
        pairs = [line.split(" ")[:2] for line in merges.read_text(encoding="utf-8").splitlines()]
        model = models.BPE(read_json(vocabulary), [(left, right) for left, right in pairs])
    tokenizer = _empty(model, pattern)
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def _empty(model: models.BPE, pattern: str) -> Tokenizer:
    """A tokenizer that cuts text before merging by the pattern with that name in params."""
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
