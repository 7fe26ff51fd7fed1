"""The model continues a text in the terminal: `python -m stages.evaluate.commands.sample "def fibonacci("`."""

import argparse
from pathlib import Path

from stages.evaluate.generate import generate
from stages.evaluate.model import open_model, open_tokenizer
from stages.runtime.entry import UserError, run_stage


def main() -> None:
    """Print the prompt and its continuation, piece by piece."""
    arguments = parse_arguments()
    model = open_model(arguments.model)
    tokenizer = open_tokenizer(arguments.model)
    print(arguments.prompt, end="", flush=True)
    pieces = generate(
        model,
        tokenizer,
        arguments.prompt,
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        seed=arguments.seed,
    )
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def parse_arguments() -> argparse.Namespace:
    """The command line. Raises UserError for a value that cannot serve."""
    parser = argparse.ArgumentParser(prog="sample", description="Continue PROMPT with the trained model.")
    parser.add_argument("prompt", metavar="PROMPT")
    parser.add_argument("--model", type=Path, default=Path("model"), help="a model folder (default: model)")
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token each time")
    parser.add_argument("--top-p", type=float, default=0.95, help="of the nucleus that is sampled from")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same text")
    arguments = parser.parse_args()
    if arguments.max_new_tokens < 1:
        raise UserError(f"--max-new-tokens {arguments.max_new_tokens}: expected a whole number from 1 on")
    if not arguments.temperature >= 0:
        raise UserError(f"--temperature {arguments.temperature}: expected 0 or more")
    if not 0 < arguments.top_p <= 1:
        raise UserError(f"--top-p {arguments.top_p}: expected more than 0 and at most 1")
    if arguments.seed < 0:
        raise UserError(f"--seed {arguments.seed}: expected 0 or more")
    return arguments


if __name__ == "__main__":
    run_stage(main)
