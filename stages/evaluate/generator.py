"""Samples from a model: the one generator, for held-out headers, code problems and `parrotflow sample`.

`width` texts are generated together. One that ends is replaced by the next at once (continuous batching), and texts of
the same prompt share its forward pass. Each text has its own seed, and its logits do not depend on the other rows
(stages/evaluate/rows.py). So a text depends on its prompt, its seed and the settings, and not on the other texts, their
order, or the number of processes and threads that share them, unless a large model takes several cores for a product
(side_by_side.py) and not all of these are there.
"""

import math
from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from stages.evaluate.generate.params import Sampling
from stages.evaluate.model import position_limit
from stages.evaluate.rows import (
    BatchedRows,
    End,
    SingleRows,
    attention_window,
    bytes_per_position,
    draw,
    log_probabilities,
    rows_of,
    stop_at,
)
from stages.evaluate.side_by_side import cores_each, cores_for, cores_of, merge_side_by_side, next_of, twin
from stages.formats.evaluation.generation import Ended

SHORTEST_CACHE = 64
"""Positions. A text that needs more gets the next power of two."""

PROMPT_TOKENS_SEEN = 8
"""Last tokens of a prompt that its text continues from: more than a character has bytes."""

PLANNED_POSITIONS = 2048
"""That the prompts and continuations of most tasks do not exceed: memory is planned for as many."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A text to generate."""

    prompt: str
    seed: int
    end: End
    """Where the text ends."""
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated text."""

    request: int
    """Index of the request."""
    text: str
    """Whole characters: bytes of an unfinished one at the end are left out."""
    ended: Ended
    ids: list[int]
    """Every token that was drawn, also a closing end-of-sequence id and the tokens of the stop string."""
    pieces: list[str]
    """What each token added to the text, and to the stop string: empty until a character is whole."""
    log_probabilities: list[float]
    """Of each token (`sampling.log_probabilities`)."""


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    requests: Sequence[GenerationRequest],
    width: int,
    max_new_tokens: int | None = None,
) -> Generator[Generated]:
    """Yield each request's text as soon as it has ended, in no particular order. Close it before the end is reached.

    On a CPU each core writes up to `width` texts of its own. So fewer texts than that take one core, however many there
    are: more would give the texts other bits. Memory is planned for texts of up to `max_new_tokens`; None: of the
    longest request. Give it where an earlier run has written some of the texts.
    """
    work = _work(model, tokenizer, requests, width)
    if max_new_tokens is None:
        max_new_tokens = max((request.sampling.max_new_tokens for request in requests), default=0)
    cores = _cores_each_writer(model, max_new_tokens, width)
    writers = max(1, min(cores_of(model) // cores, math.ceil(len(requests) / width)))
    with cores_each(cores):
        models = [model, *(twin(model) for _ in range(writers - 1))]
        yield from merge_side_by_side([_whole_texts(_write(one, work)) for one in models])


def stream(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str, sampling: Sampling, seed: int
) -> Iterator[str]:
    """Yield the continuation of a prompt piece by piece, in whole characters, until the document ends."""
    shown = 0
    work = _work(model, tokenizer, [GenerationRequest(prompt, seed, stop_at(()), sampling)], width=1)
    for row, _ in _write(model, work):
        if len(row.text) > shown:
            yield row.text[shown:]
            shown = len(row.text)


def prompt_tokens(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """What the model reads: the end-of-sequence id, which begins every document, then the prompt."""
    return [tokenizer.eos_token_id, *tokenizer.backend_tokenizer.encode(prompt, add_special_tokens=False).ids]


@dataclass(frozen=True, slots=True)
class _Work:
    """Texts to be written, shared by all that write them."""

    tokenizer: PreTrainedTokenizerFast
    end_id: int
    """Of the token that ends a text."""
    known_ids: int
    """One more than the tokenizer's highest id: further ones pad some models' embeddings and are never drawn."""
    requests: Sequence[GenerationRequest]
    width: int
    limit: float
    """The model's positions; infinite where they have no limit."""
    rows_type: type[BatchedRows | SingleRows]
    """For caches of up to `window` positions; longer ones are SingleRows."""
    window: float
    prompts: dict[str, list[int]]
    """The tokens of each prompt."""
    waiting: list[tuple[int, deque[int]]]
    """Lengths of the cache, and for each the texts that need it and were not started yet."""


@torch.inference_mode()
def _work(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    requests: Sequence[GenerationRequest],
    width: int,
) -> _Work:
    limit = position_limit(model.config) or math.inf
    known_ids = max(tokenizer.get_vocab().values()) + 1  # more than there are tokens, where ids are left out
    prompts = {prompt: prompt_tokens(tokenizer, prompt) for prompt in {request.prompt for request in requests}}

    def cache_length(number: int) -> int:
        request = requests[number]
        needed = len(prompts[request.prompt]) + request.sampling.max_new_tokens
        return int(min(limit, max(SHORTEST_CACHE, 1 << (needed - 1).bit_length())))

    # Texts of one prompt stay together, so that it is read once.
    order = sorted(range(len(requests)), key=lambda number: (cache_length(number), requests[number].prompt, number))
    waiting = [(length, deque(group)) for length, group in groupby(order, cache_length)]
    return _Work(
        tokenizer, tokenizer.eos_token_id, known_ids, requests, width, limit, rows_of(model),
        attention_window(model), prompts, waiting,
    )  # fmt: skip


@torch.inference_mode()
def _cores_each_writer(model: PreTrainedModel, max_new_tokens: int, width: int) -> int:
    """How many cores a thread that writes takes. It does not follow from the texts, of which a kill leaves fewer."""
    if cores_of(model) == 1:
        return 1
    longest = min(position_limit(model.config) or math.inf, max(PLANNED_POSITIONS, 2 * max_new_tokens))
    return cores_for(model, width * int(longest) * bytes_per_position(model))


@dataclass(slots=True)
class _Row:
    """A text in progress."""

    number: int
    """Index of the request."""
    request: GenerationRequest
    seen: list[int]
    """The tokens in the model's context: the prompt and what was drawn, or the end of it if the positions ran out."""
    uniforms: npt.NDArray[np.float64]
    """A random number for each token to be drawn."""
    stream: DecodeStream
    """Has seen the end of the prompt: some tokenizers write a space before every word but the first of a text."""
    drawn: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    text: str = ""

    def take(self, token: int, log_probability: float, work: _Work) -> Ended | None:
        """Append a token. Returns why the text ends with it; None if it does not end."""
        self.drawn.append(token)
        self.log_probabilities.append(log_probability)
        self.pieces.append("")
        if token == work.end_id:
            return "eos"
        self.seen.append(token)
        piece = self.stream.step(work.tokenizer.backend_tokenizer, token)
        if piece:
            self.pieces[-1] = piece
            self.text += piece
            end = self.request.end(self.text)
            if end is not None:
                self.text = self.text[:end]
                return "stop"
        return "length" if len(self.drawn) == len(self.uniforms) else None


@torch.inference_mode()
def _write(model: PreTrainedModel, work: _Work) -> Iterator[tuple[_Row, Ended | None]]:
    """Yield a row after each of its tokens, with why it ended; None if it did not.

    Where the model's positions are used up, a text continues from the later half of what was read. With 4 positions:

        tokens   a b c d e f g h
        step 1   a b c d           -> e
        step 2         d e         -> f     (the cache starts again with the last 2)
        step 3         d e f       -> g
    """
    for length, waiting in work.waiting:
        if not waiting:
            continue
        rows = (work.rows_type if length <= work.window else SingleRows)(model, work.width, length)
        writing: dict[int, _Row] = {}
        while True:
            for slot in range(work.width):
                if slot not in writing and (number := next_of(waiting)) is not None:
                    request = work.requests[number]
                    ids = work.prompts[request.prompt][-length:]
                    rows.read(slot, ids)
                    uniforms = np.random.default_rng(request.seed).random(request.sampling.max_new_tokens)
                    writing[slot] = _Row(number, request, list(ids), uniforms, _stream_after(ids, work))
            if not writing:
                break
            fed: dict[int, int] = {}
            for slot, token, log_probability in _drawn(writing, rows.logits[:, : work.known_ids]):
                row = writing[slot]
                ended = row.take(token, log_probability, work)
                yield row, ended
                if ended:
                    del writing[slot]
                elif len(row.seen) > work.limit:
                    row.seen = row.seen[-int(work.limit // 2) :]
                    rows.read(slot, row.seen)
                else:
                    fed[slot] = token
            if fed:
                rows.step(fed)


def _stream_after(ids: list[int], work: _Work) -> DecodeStream:
    stream = DecodeStream(skip_special_tokens=True)
    for token in ids[-PROMPT_TOKENS_SEEN:]:
        if token != work.end_id:
            stream.step(work.tokenizer.backend_tokenizer, token)
    return stream


def _drawn(writing: dict[int, _Row], logits: torch.Tensor) -> list[tuple[int, int, float]]:
    """A token for each row in progress, (slot, token, its log-probability); rows of the same settings together."""
    alike: dict[tuple[float, float], list[int]] = defaultdict(list)
    for slot in sorted(writing):
        sampling = writing[slot].request.sampling
        alike[sampling.temperature, sampling.top_p].append(slot)
    drawn: list[tuple[int, int, float]] = []
    for (temperature, top_p), slots in alike.items():
        uniforms = np.array([writing[slot].uniforms[len(writing[slot].drawn)] for slot in slots])
        own = logits[slots]
        tokens = draw(own, temperature, top_p, uniforms)
        drawn += zip(slots, tokens, log_probabilities(own, tokens), strict=True)
    return drawn


def _whole_texts(written: Iterator[tuple[_Row, Ended | None]]) -> Iterator[Generated | None]:
    """The texts that have ended, and None after each other token."""
    for row, ended in written:
        if ended:
            yield Generated(row.number, row.text, ended, row.drawn, row.pieces, row.log_probabilities)
        else:
            yield None
