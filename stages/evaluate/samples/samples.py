"""Completions of held-out function headers, and the page that shows them as they came."""

import hashlib
from collections.abc import Sequence
from typing import Any

from rich.progress import track
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from stages.evaluate.generate import generate
from stages.evaluate.params import SampleParams
from stages.evaluate.samples.completion import Completion, complete
from stages.evaluate.samples.headers import Header


def complete_headers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    headers: Sequence[Header],
    params: SampleParams,
    seed: int,
) -> list[Completion]:
    """One completion of each header; each has a seed of its own, so none hangs on how many there are."""
    completions = []
    for header in track(headers, description="sampling"):
        pieces = generate(
            model,
            tokenizer,
            header.prompt,
            max_new_tokens=params.max_new_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            seed=header_seed(header, seed),
        )
        completions.append(complete(header, pieces))
    return completions


def header_seed(header: Header, seed: int) -> int:
    """64 bits from the stage's seed and the header's place."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{header.key}".encode()).digest()[:8], "big")


def samples_page(completions: Sequence[Completion], params: SampleParams) -> str:
    """Markdown: what the model saw, and what it wrote, for each header."""
    if not completions:
        return "# Samples\n\nNone were asked for, or the held-out documents have no Python functions.\n"
    parsed = sum(completion.parses for completion in completions)
    introduction = (
        "# Samples\n\n"
        "Functions of held-out files, completed from their header by the trained model, chosen at random and shown as "
        f"they came (temperature {params.temperature:g}, top-p {params.top_p:g}, at most {params.max_new_tokens} "
        f"tokens). {parsed} of {len(completions)} are valid Python.\n"
    )
    return introduction + "".join(f"\n{_section(number, item)}" for number, item in enumerate(completions, start=1))


def samples_data(completions: Sequence[Completion]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "source": completion.header.source,
            "path": completion.header.path,
            "line": completion.header.line,
            "prompt": completion.header.prompt,
            "signature": completion.header.signature,
            "body": completion.body,
            "finished": completion.finished,
            "parses": completion.parses,
        }
        for completion in completions
    ]


def _section(number: int, completion: Completion) -> str:
    header = completion.header
    verdict = "parses" if completion.parses else "does not parse"
    end = "" if completion.finished else ", cut off"
    written = completion.body.lstrip("\n") or "(nothing)"
    return (
        f"## {number}. `{header.source}` {header.path}, line {header.line} ({verdict}{end})\n\n"
        f"What the model saw:\n\n{_block(header.prompt)}\nWhat it wrote:\n\n{_block(written)}"
    )


def _block(text: str) -> str:
    """A code block whose fence no text within can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    ending = "" if text.endswith("\n") else "\n"
    return f"{fence}python\n{text}{ending}{fence}\n"
