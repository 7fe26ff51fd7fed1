"""What the tokenizer's folder says of its ids."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from stages.formats.model_folder import TOKENIZER_CONFIG, TOKENIZER_JSON
from stages.formats.reports import read_json
from stages.runtime.entry import UserError
from stages.runtime.hashes import file_sha256


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The facts of a tokenizer that a token store depends on."""

    tokenizer_json: Path
    sha256: str
    """Of `tokenizer.json`."""
    size: int
    """One more than the highest id."""
    eos_id: int
    special_ids: frozenset[int]
    """Ids that no text may become: all special tokens but the one for unknown text."""


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read a tokenizer's folder. Raises UserError if it is none or names no end-of-sequence token."""
    tokenizer_json = folder / TOKENIZER_JSON
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_json))
        config = read_json(folder / TOKENIZER_CONFIG)
    except Exception as error:  # the library raises bare ones
        raise UserError(f"{folder}: no tokenizer ({error}); run `dvc repro tokenizer`") from None
    eos_id = tokenizer.token_to_id(_content(config.get("eos_token")))
    if eos_id is None:
        raise UserError(f"{folder}: {TOKENIZER_CONFIG} names no eos_token of the vocabulary; it closes each document")
    unknown = _content(config.get("unk_token"))
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return Vocabulary(
        tokenizer_json=tokenizer_json,
        sha256=file_sha256(tokenizer_json),
        size=max(tokenizer.get_vocab().values()) + 1,
        eos_id=eos_id,
        special_ids=frozenset(special - {tokenizer.token_to_id(unknown)}),
    )


def _content(token: str | dict[str, str] | None) -> str:
    return token.get("content", "") if isinstance(token, dict) else token or ""
