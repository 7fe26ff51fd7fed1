"""The tokenizer, and the text that it is trained on."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.runtime.section import FileName, Section


class TokenizerParams(Section):
    """The section `tokenizer` of params.yaml."""

    kind: Literal["bpe", "characters", "existing"]
    """`bpe`: byte-level byte-pair encoding trained on the train split. `characters`: each character of the train split
    is a token, as in minGPT (with `tokenize.engine: tokenizers`). `existing`: taken from `folder`."""
    vocabulary_size: Annotated[int, Field(ge=257, le=2**20)]
    """Tokens of a trained `bpe`, its 256 bytes and `<|endoftext|>` counted. Larger: fewer tokens per byte, more
    parameters in the embeddings, rarer tokens learn less."""
    pattern: Literal["gpt2", "digits", "gpt4"]
    """How `bpe` cuts text before merging: GPT-2's pattern; the same with each digit alone (StarCoder); GPT-4's (indents
    stay whole, digits in threes)."""
    training_bytes: Annotated[int, Field(ge=1)]
    """The most text that `bpe` is trained on: documents in the order of their ids, which is a uniform sample. It bounds
    time and memory as the corpus grows, and an edit outside of the sample leaves the tokenizer as it is."""
    folder: FileName | None
    """Folder of an existing tokenizer, as transformers saves it; only with `kind: existing`."""

    @model_validator(mode="after")
    def _folder_belongs_to_existing(self) -> Self:
        if (self.kind == "existing") != (self.folder is not None):
            raise ValueError("`folder` is required for `kind: existing`, and must be null for other kinds")
        return self
