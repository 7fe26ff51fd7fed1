"""`parrotflow sample "def fibonacci("`: the model continues a prompt in the terminal."""

import stages.evaluate.libraries  # noqa: F401 (before torch)

# isort: split

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import ValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from stages.evaluate.generate.generator import prompt_tokens, stream
from stages.evaluate.generate.params import Sampling
from stages.evaluate.model import open_model, open_tokenizer, position_limit
from stages.formats.model_folder import MODEL
from stages.runtime.errors import EXIT_INTERRUPTED, UserError, fail


def sample(
    prompt: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    model: Path = MODEL,
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
) -> None:
    """Continue a prompt with the trained model, token by token.

    Parameters
    ----------
    prompt
        The text to continue; - reads it from standard input.
    model
        A model folder.
    max_new_tokens
        Tokens to generate at most, 1 or more.
    temperature
        0 takes the most likely token each time.
    top_p
        Sample from the most likely tokens, up to this total probability.
    seed
        The same seed gives the same text.
    """
    try:
        if seed < 0:
            raise UserError(f"--seed {seed}: expected 0 or more")
        sampling = sampling_of(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p)
        text = prompt if prompt != "-" else standard_input().removesuffix("\n")
        opened, tokenizer = open_model(model), open_tokenizer(model)
        require_text(text)
        warn_of_a_long_prompt(opened, tokenizer, text)
        print(text, end="", flush=True)
        for piece in stream(opened, tokenizer, text, sampling, seed):
            print(piece, end="", flush=True)
        print()
    except KeyboardInterrupt:
        fail("interrupted", EXIT_INTERRUPTED)


def standard_input() -> str:
    """Read standard input as UTF-8 in any locale. Invalid bytes become surrogates, as in arguments."""
    with open(sys.stdin.fileno(), encoding="utf-8", errors="surrogateescape", closefd=False) as stdin:
        return stdin.read()


def require_text(prompt: str) -> None:
    """Raise UserError if a prompt is not UTF-8: Python keeps invalid bytes as surrogates."""
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError("the prompt is not UTF-8") from None


def warn_of_a_long_prompt(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str) -> None:
    """Warn on standard error if the prompt is longer than the model reads."""
    length, limit = len(prompt_tokens(tokenizer, prompt)), position_limit(model.config)
    if limit is not None and length > limit:
        print(
            f"warning: the prompt has {length} tokens, the model reads at most {limit}: it reads the last {limit}",
            file=sys.stderr,
            flush=True,
        )


def sampling_of(**values: Any) -> Sampling:
    """The sampling settings. Raises UserError, naming the option, if a value is out of range."""
    try:
        return Sampling(**values)
    except ValidationError as error:
        fault = error.errors()[0]
        name = str(fault["loc"][0])
        raise UserError(f"--{name.replace('_', '-')} {values[name]}: {fault['msg']}") from None
