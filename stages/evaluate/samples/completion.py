"""Completes function headers: where a completed function ends, and whether it is Python."""

import ast
import hashlib
import io
import textwrap
import warnings
from collections.abc import Iterable, Sequence

from rich.progress import track
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from stages.evaluate.generate import generate
from stages.evaluate.params import SampleParams
from stages.evaluate.samples.headers import Header
from stages.formats.samples import Sample


def complete_headers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    headers: Sequence[Header],
    params: SampleParams,
    seed: int,
) -> list[Sample]:
    """One completion of each header; each has its own seed, so it does not depend on how many there are."""
    return [
        complete(
            header,
            generate(
                model,
                tokenizer,
                header.prompt,
                max_new_tokens=params.max_new_tokens,
                temperature=params.temperature,
                top_p=params.top_p,
                seed=header_seed(header, seed),
            ),
        )
        for header in track(headers, description="sampling")
    ]


def header_seed(header: Header, seed: int) -> int:
    """64 bits from the stage's seed and the header's key."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{header.key}".encode()).digest()[:8], "big")


def complete(header: Header, pieces: Iterable[str]) -> Sample:
    """Take pieces of text until a line leaves the function; no more are sampled than that needs."""
    indent = indentation(header.signature)
    text = ""
    for piece in pieces:
        text += piece
        end = function_end(text, indent)
        if end is not None:
            return _sample(header, text[:end], finished=True)
    return _sample(header, text[: text.rfind("\n") + 1], finished=False)


def function_end(text: str, indent: int) -> int | None:
    """The index of the first line that is not blank and is indented by at most `indent` columns; None if none is.

    What precedes the first line's end belongs to the signature's line.
    """
    start = text.find("\n") + 1
    if start == 0:
        return None
    for line in io.StringIO(text[start:]):
        if line.strip() and indentation(line) <= indent:
            return start
        start += len(line)
    return None


def indentation(line: str) -> int:
    """Columns before a line's first character, a tab reaching to the next multiple of eight as in Python."""
    expanded = line.expandtabs(8)
    return len(expanded) - len(expanded.lstrip(" "))


def is_function(text: str) -> bool:
    """Whether a text, its common indentation removed, is Python."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _sample(header: Header, body: str, *, finished: bool) -> Sample:
    body = body.rstrip() + "\n"
    return Sample(
        source=header.source,
        path=header.path,
        line=header.line,
        prompt=header.prompt,
        signature=header.signature,
        body=body,
        finished=finished,
        parses=is_function(header.signature + body),
    )
