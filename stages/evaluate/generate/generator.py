"""Samples from a model: the one generator, for held-out headers, code problems and `parrotflow sample`.

`width` texts are generated together. One that ends is replaced by the next at once (continuous batching), and texts of
the same prompt share its forward pass. Each text has its own seed. The same requests give the same texts on the same
kind of machine with the same number of threads; a text's last bits, and so rarely the text, may depend on the others.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from stages.evaluate.generate.params import Sampling
from stages.evaluate.generate.rows import BatchedRows, End, log_probabilities, require_rows, sample_tokens, stop_at
from stages.evaluate.model import position_limit
from stages.formats.evaluation.generation import FinishReason

MIN_CACHE_LENGTH = 64
"""Positions. A text that needs more gets the next power of two."""

PROMPT_TOKENS_SEEN = 8
"""Last tokens of a prompt that its text continues from: more than a character has bytes."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A text to generate."""

    prompt: str
    seed: int
    end: End
    """The condition that ends the text; each text gets a copy."""
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated text."""

    request: int
    """Index of the request."""
    text: str
    """Whole characters: bytes of an unfinished one at the end are left out."""
    finish_reason: FinishReason
    ids: list[int]
    """Every token that was drawn, also a closing end-of-sequence id and the tokens of the stop string."""
    pieces: list[str]
    """The characters that each token added, also those of the stop string; empty until a character is whole."""
    log_probabilities: list[float]
    """The log-probability of each token, under the model itself (`rows.log_probabilities`)."""


def generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, requests: Sequence[GenerationRequest], width: int
) -> Iterator[Generated]:
    """Yield each request's text as soon as it has ended, in no particular order.

    Raises UserError for a model that cannot be continued in batches.
    """
    for row, ended in _write(model, tokenizer, requests, width):
        if ended:
            yield Generated(row.number, row.text, ended, row.drawn, row.pieces, row.log_probabilities)


def stream(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str, sampling: Sampling, seed: int
) -> Iterator[str]:
    """Yield the continuation of a prompt piece by piece, in whole characters, until the document ends."""
    shown = 0
    for row, _ in _write(model, tokenizer, [GenerationRequest(prompt, seed, stop_at(()), sampling)], width=1):
        if len(row.text) > shown:
            yield row.text[shown:]
            shown = len(row.text)


def prompt_tokens(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """The ids that the model reads: the end-of-sequence id, which begins every document, then the prompt."""
    return [tokenizer.eos_token_id, *tokenizer.backend_tokenizer.encode(prompt, add_special_tokens=False).ids]


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
    end: End
    drawn: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    text: str = ""

    def take(self, token: int, log_probability: float, tokenizer: PreTrainedTokenizerFast) -> FinishReason | None:
        """Append a token. Returns why the text ends with it; None if it does not end."""
        self.drawn.append(token)
        self.log_probabilities.append(log_probability)
        self.pieces.append("")
        if token == tokenizer.eos_token_id:
            return "eos"
        self.seen.append(token)
        piece = self.stream.step(tokenizer.backend_tokenizer, token)
        if piece:
            self.pieces[-1] = piece
            self.text += piece
            end = self.end(self.text)
            if end is not None:
                self.text = self.text[:end]
                return "stop"
        return "length" if len(self.drawn) == len(self.uniforms) else None


@torch.inference_mode()
def _write(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, requests: Sequence[GenerationRequest], width: int
) -> Iterator[tuple[_Row, FinishReason | None]]:
    """Yield a row after each of its tokens, with why it ended; None if it did not.

    Where the model's positions are used up, a text continues from the later half of what was read. With 4 positions:

        tokens   a b c d e f g h
        step 1   a b c d           -> e
        step 2         d e         -> f     (the cache starts again with the last 2)
        step 3         d e f       -> g
    """
    limit = position_limit(model.config) or math.inf
    # Further ids pad some models' embeddings. There are more than tokens if ids are skipped.
    known_ids = max(tokenizer.get_vocab().values()) + 1
    prompts = {prompt: prompt_tokens(tokenizer, prompt) for prompt in {request.prompt for request in requests}}

    def cache_length(number: int) -> int:
        needed = len(prompts[requests[number].prompt]) + requests[number].sampling.max_new_tokens
        return int(min(limit, max(MIN_CACHE_LENGTH, 1 << (needed - 1).bit_length())))

    # Texts of one prompt stay together, so that it is read once.
    order = sorted(range(len(requests)), key=lambda number: (cache_length(number), requests[number].prompt, number))
    if order:
        require_rows(model, cache_length(order[-1]))
    for length, group in groupby(order, cache_length):
        rows, waiting = BatchedRows(model, width, length), deque(group)
        writing: dict[int, _Row] = {}
        while True:
            for slot in range(width):
                if slot not in writing and waiting:
                    number = waiting.popleft()
                    request = requests[number]
                    ids = prompts[request.prompt][-length:]
                    rows.read(slot, ids)
                    uniforms = np.random.default_rng(request.seed).random(request.sampling.max_new_tokens)
                    stream = _stream_after(ids, tokenizer)
                    writing[slot] = _Row(number, request, list(ids), uniforms, stream, copy(request.end))
            if not writing:
                break
            fed: dict[int, int] = {}
            for slot, token, log_probability in _drawn(writing, rows.logits[:, :known_ids]):
                row = writing[slot]
                ended = row.take(token, log_probability, tokenizer)
                yield row, ended
                if ended:
                    del writing[slot]
                elif len(row.seen) > limit:
                    row.seen = row.seen[-int(limit // 2) :]
                    rows.read(slot, row.seen)
                else:
                    fed[slot] = token
            if fed:
                rows.step(fed)


def _stream_after(ids: list[int], tokenizer: PreTrainedTokenizerFast) -> DecodeStream:
    stream = DecodeStream(skip_special_tokens=True)
    for token in ids[-PROMPT_TOKENS_SEEN:]:
        if token != tokenizer.eos_token_id:
            stream.step(tokenizer.backend_tokenizer, token)
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
        tokens = sample_tokens(own, temperature, top_p, uniforms)
        drawn += zip(slots, tokens, log_probabilities(own, tokens), strict=True)
    return drawn
