"""Samples texts from a model, for held-out headers, code problems and `parrotflow sample`.

`width` texts are generated together. When one ends, the next takes its place (continuous batching), and texts with the
same prompt share its forward pass. Each text has its own seed. The same requests give the same texts on the same kind
of machine with the same number of threads. Another batch can change the last bits of the logits and, rarely, a text.
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
"""Positions in the cache. Longer texts get the next power of two."""

PROMPT_TOKENS_SEEN = 8
"""How many of a prompt's last tokens the decoder sees before the text: more than a character has bytes."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A text to generate."""

    prompt: str
    seed: int
    end: End
    """Decides where the text ends; each text gets a copy."""
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated text."""

    request: int
    """Index of the request."""
    text: str
    """Without an incomplete character at the end."""
    finish_reason: FinishReason
    ids: list[int]
    """Every token drawn, including a closing end-of-sequence id and the tokens of the stop string."""
    pieces: list[str]
    """The characters that each token added, including the stop string; empty until a character is complete."""
    log_probabilities: list[float]
    """The log-probability of each token, as in `rows.log_probabilities`."""


def generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, requests: Sequence[GenerationRequest], width: int
) -> Iterator[Generated]:
    """Yield each request's text when it ends, in no particular order.

    Raises UserError if the model cannot generate in batches.
    """
    for row, ended in _write(model, tokenizer, requests, width):
        if ended:
            yield Generated(row.number, row.text, ended, row.drawn, row.pieces, row.log_probabilities)


def stream(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str, sampling: Sampling, seed: int
) -> Iterator[str]:
    """Yield the continuation of a prompt in pieces of whole characters, until the document ends."""
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
    """The tokens in the model's context: the prompt and the drawn tokens, cut at the beginning if they are too many."""
    uniforms: npt.NDArray[np.float64]
    """A random number for each token to draw."""
    stream: DecodeStream
    """Has seen the end of the prompt, because some tokenizers omit the space before the first word of a text."""
    end: End
    drawn: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    text: str = ""

    def take(self, token: int, log_probability: float, tokenizer: PreTrainedTokenizerFast) -> FinishReason | None:
        """Append a token. Returns why the text ends here, or None if it does not."""
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
    """Yield a row after each of its tokens, with the reason why it ended, or None.

    When a text has used up the model's positions, it continues from the last half of them. With 4 positions:

        tokens   a b c d e f g h
        step 1   a b c d           -> e
        step 2         d e         -> f     (the cache starts again with the last 2)
        step 3         d e f       -> g
    """
    limit = position_limit(model.config) or math.inf
    # Higher ids only pad the embedding of some models. Not the number of tokens, as a vocabulary may skip ids.
    known_ids = max(tokenizer.get_vocab().values()) + 1
    prompts = {prompt: prompt_tokens(tokenizer, prompt) for prompt in {request.prompt for request in requests}}

    def cache_length(number: int) -> int:
        needed = len(prompts[requests[number].prompt]) + requests[number].sampling.max_new_tokens
        return int(min(limit, max(MIN_CACHE_LENGTH, 1 << (needed - 1).bit_length())))

    # Requests with the same prompt are adjacent, so that it is read once.
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
    """(slot, token, log-probability) for each row in progress; rows with equal settings are drawn together."""
    alike: dict[tuple[float, float], list[int]] = defaultdict(list)
    for slot in sorted(writing):
        sampling = writing[slot].request.sampling
        alike[sampling.temperature, sampling.top_p].append(slot)
    drawn: list[tuple[int, int, float]] = []
    for (temperature, top_p), slots in alike.items():
        uniforms = np.array([writing[slot].uniforms[len(writing[slot].drawn)] for slot in slots])
        selected = logits[slots]
        tokens = sample_tokens(selected, temperature, top_p, uniforms)
        drawn += zip(slots, tokens, log_probabilities(selected, tokens), strict=True)
    return drawn
