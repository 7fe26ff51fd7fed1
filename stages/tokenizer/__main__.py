"""Documents -> tokenizer: `python -m stages.tokenizer`."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from stages.formats.documents import CLEAN, require_documents
from stages.formats.model_folder import TOKENIZER, TOKENIZER_JSON
from stages.formats.reports import REPORTS, write_json
from stages.formats.tokens import TRAIN
from stages.runtime.atomic import atomic_folder, file_sha256
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage
from stages.tokenizer.params import TokenizerParams
from stages.tokenizer.train import characters, save_trained, shard_texts, take_over, train_on_documents

SAMPLE_DOCUMENTS = 100
"""Documents that an existing tokenizer has to give back."""


def main() -> None:
    params = read_section("tokenizer", TokenizerParams)
    shards = require_documents(CLEAN / TRAIN)
    with atomic_folder(TOKENIZER) as folder:
        tokenizer = make(params, shards, folder)
    print(f"a vocabulary of {tokenizer.get_vocab_size():,} tokens", flush=True)
    if params.folder is not None:
        warn_of_lost_text(tokenizer, shard_texts(shards[0], SAMPLE_DOCUMENTS))
    write_json(
        REPORTS / "tokenizer.json",
        {
            "kind": params.kind,
            "vocabulary_size": tokenizer.get_vocab_size(),
            "longest_token_characters": longest_token(tokenizer),
            "sha256": file_sha256(TOKENIZER / TOKENIZER_JSON),
        },
    )


def warn_of_lost_text(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Print a warning if texts do not come back from their tokens."""
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
    decoded = tokenizer.decode_batch(ids, skip_special_tokens=False)
    if lost := sum(before != after for before, after in zip(texts, decoded, strict=True)):
        print(
            f"WARNING: {lost} of {len(texts)} documents change when encoded and decoded: this tokenizer loses text, "
            "so losses and bits per byte will be too low, and the model cannot write that text",
            flush=True,
        )


def longest_token(tokenizer: Tokenizer) -> int:
    """Characters of the longest token's text; in a vocabulary of bytes each byte is written as a character."""
    ids = [[number] for number in tokenizer.get_vocab().values()]
    return max(map(len, tokenizer.decode_batch(ids, skip_special_tokens=False)))


def make(params: TokenizerParams, shards: Sequence[Path], folder: Path) -> Tokenizer:
    """Train or take over the tokenizer that the parameters name, and write it to `folder`."""
    if params.folder is not None:
        return take_over(Path(params.folder), folder)
    if params.kind == "characters":
        tokenizer = characters(map(shard_texts, shards))
    else:
        tokenizer = train_on_documents(shards, params.training_bytes, params.vocabulary_size, params.pattern)
        if (size := tokenizer.get_vocab_size()) < params.vocabulary_size:
            print(
                f"the text ran out of pairs to merge: the vocabulary has {size:,} of {params.vocabulary_size:,} tokens."
                " Add text (tokenizer.training_bytes says how much of it counts), or lower tokenizer.vocabulary_size",
                flush=True,
            )
    save_trained(tokenizer, folder)
    return tokenizer


if __name__ == "__main__":
    run_stage(main)
