"""Documents -> tokenizer: `python -m stages.tokenizer`."""

from pathlib import Path

from tokenizers import Tokenizer

from stages.formats.documents import CLEAN, require_documents
from stages.formats.model_folder import TOKENIZER, TOKENIZER_JSON
from stages.formats.reports import REPORTS, write_json
from stages.formats.tokens import TRAIN
from stages.runtime.atomic import atomic_folder, file_sha256
from stages.runtime.section import read_section
from stages.runtime.stage import require_listed, run_stage
from stages.tokenizer.params import TokenizerParams
from stages.tokenizer.train import characters, parts, save_trained, take_over, train_on_documents

TRAINING_DOCUMENTS = CLEAN / TRAIN


def main() -> None:
    params = read_section("tokenizer", TokenizerParams)
    if params.folder is not None:
        require_listed("tokenizer.folder", Path(params.folder))
    require_documents(TRAINING_DOCUMENTS)
    with atomic_folder(TOKENIZER) as folder:
        tokenizer = make(params, folder)
    print(f"a vocabulary of {tokenizer.get_vocab_size():,} tokens", flush=True)
    write_json(
        REPORTS / "tokenizer.json",
        {
            "kind": params.kind,
            "vocabulary_size": tokenizer.get_vocab_size(),
            "longest_token_characters": longest_token(tokenizer),
            "sha256": file_sha256(TOKENIZER / TOKENIZER_JSON),
        },
    )


def longest_token(tokenizer: Tokenizer) -> int:
    """Characters of the longest token's text; in a vocabulary of bytes each byte is written as a character."""
    ids = [[number] for number in tokenizer.get_vocab().values()]
    return max(map(len, tokenizer.decode_batch(ids, skip_special_tokens=False)))


def make(params: TokenizerParams, folder: Path) -> Tokenizer:
    """Train or take over the tokenizer that the parameters name, and write it to `folder`."""
    if params.folder is not None:
        return take_over(Path(params.folder), folder)
    if params.kind == "characters":
        tokenizer = characters(part.texts() for part in parts(TRAINING_DOCUMENTS, limit=2**63 - 1))
    else:
        tokenizer = train_on_documents(
            TRAINING_DOCUMENTS, params.training_bytes, params.vocabulary_size, params.pattern
        )
        if (size := tokenizer.get_vocab_size()) < params.vocabulary_size:
            is_all = sum(count for _, count in parts(TRAINING_DOCUMENTS, params.training_bytes)) == sum(
                count for _, count in parts(TRAINING_DOCUMENTS, 2**63 - 1)
            )
            remedy = "Add text" if is_all else "Raise tokenizer.training_bytes"
            print(
                "the text ran out of pairs to merge: the vocabulary has "
                f"{size:,} of {params.vocabulary_size:,} tokens. {remedy} or lower tokenizer.vocabulary_size",
                flush=True,
            )
    save_trained(tokenizer, folder)
    return tokenizer


if __name__ == "__main__":
    run_stage(main)
