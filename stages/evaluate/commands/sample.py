"""The model continues a prompt in the terminal: `python -m stages.evaluate.commands.sample "def fibonacci("`."""

import stages.evaluate.libraries  # noqa: F401 (before torch)

# isort: split

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from stages.evaluate.generate.params import Sampling
from stages.evaluate.generator import prompt_tokens, stream
from stages.evaluate.model import open_model, open_tokenizer, position_limit
from stages.formats.model_folder import MODEL
from stages.runtime.errors import EXIT_INTERRUPTED, UserError, fail
from stages.runtime.stage import run_stage


def main() -> None:
    """Print the prompt and its continuation, piece by piece."""
    try:
        arguments = parse_arguments()
        prompt = arguments.prompt if arguments.prompt != "-" else standard_input().removesuffix("\n")
        model, tokenizer = open_model(arguments.model), open_tokenizer(arguments.model)
        require_text(prompt)
        warn_of_a_long_prompt(model, tokenizer, prompt)
        print(prompt, end="", flush=True)
        for piece in stream(model, tokenizer, prompt, arguments.sampling, arguments.seed):
            print(piece, end="", flush=True)
        print()
    except KeyboardInterrupt:
        fail("interrupted", EXIT_INTERRUPTED)


def standard_input() -> str:
    """The whole of it, read as UTF-8 in any locale. Other bytes become halves of surrogate pairs, as in arguments."""
    with open(sys.stdin.fileno(), encoding="utf-8", errors="surrogateescape", closefd=False) as given:
        return given.read()


def require_text(prompt: str) -> None:
    """Raise UserError for a prompt in another encoding, whose bytes Python keeps as halves of surrogate pairs."""
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError("the prompt is not UTF-8") from None


def warn_of_a_long_prompt(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str) -> None:
    """Say on standard error how much of the prompt the model reads, if that is not all."""
    length, limit = len(prompt_tokens(tokenizer, prompt)), position_limit(model.config)
    if limit is not None and length > limit:
        print(
            f"warning: the prompt has {length} tokens, the model reads at most {limit}: it reads the last {limit}",
            file=sys.stderr,
            flush=True,
        )


def parse_arguments() -> argparse.Namespace:
    """The command line. Raises UserError for a value out of range."""
    parser = argparse.ArgumentParser(
        prog="parrotflow sample",
        description="Continue PROMPT with the trained model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue; - reads it from standard input")
    parser.add_argument("--model", type=Path, default=MODEL, help="a model folder")
    parser.add_argument("--max-new-tokens", type=int, default=200, help="tokens to generate at most, 1 or more")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the most likely token each time")
    parser.add_argument("--top-p", type=float, default=0.95, help="probability of the nucleus that is sampled from")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same text")
    arguments = parser.parse_args()
    if arguments.seed < 0:
        raise UserError(f"--seed {arguments.seed}: expected 0 or more")
    values = {name: getattr(arguments, name) for name in Sampling.model_fields}
    try:
        arguments.sampling = Sampling(**values)
    except ValidationError as error:
        fault = error.errors()[0]
        name = str(fault["loc"][0])
        raise UserError(f"--{name.replace('_', '-')} {values[name]}: {fault['msg']}") from None
    return arguments


if __name__ == "__main__":
    run_stage(main)
