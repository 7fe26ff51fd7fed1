"""Samples from a model, a token at a time."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from stages.evaluate.model import position_limit


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    *,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> Iterator[str]:
    """Yield the continuation of `prompt` piece by piece, in whole characters, until the document ends.

    The same arguments give the same text on one machine.
    """
    ids = prompt_tokens(tokenizer, prompt)
    stream = DecodeStream(skip_special_tokens=True)
    generator = np.random.default_rng(seed)
    for token in sample_tokens(model, ids, max_new_tokens, temperature, top_p, generator, vocabulary=len(tokenizer)):
        if token == tokenizer.eos_token_id:
            return
        piece = stream.step(tokenizer.backend_tokenizer, token)
        if piece:
            yield piece


def prompt_tokens(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """What the model reads: the end-of-sequence id, which begins every document, then the prompt."""
    return [tokenizer.eos_token_id, *tokenizer.backend_tokenizer.encode(prompt, add_special_tokens=False).ids]


@torch.inference_mode()
def sample_tokens(
    model: PreTrainedModel,
    ids: list[int],
    count: int,
    temperature: float,
    top_p: float,
    generator: np.random.Generator,
    vocabulary: int | None = None,
) -> Iterator[int]:
    """Yield `count` token ids after `ids`, with a key-value cache.

    Ids of `vocabulary` and above, which pad some models' embeddings, are never sampled. Where the model's positions
    are used up, generation continues from the later half of the text. With 4 positions:

        tokens   a b c d e f g h
        step 1   a b c d           -> e
        step 2         d e         -> f     (the cache starts again with the last 2)
        step 3         d e f       -> g
    """
    limit = position_limit(model) or math.inf
    seen = ids[-int(min(limit, len(ids))) :]
    unread, past = seen, None
    for _ in range(count):
        if len(seen) > limit:
            seen = seen[-int(limit // 2) :]
            unread, past = seen, None
        read = torch.tensor([unread], device=model.device)
        output = model(input_ids=read, past_key_values=past, use_cache=True, logits_to_keep=1)
        past = output.past_key_values
        logits: npt.NDArray[np.float64] = output.logits[0, -1, :vocabulary].double().cpu().numpy()
        unread = [draw(logits, temperature, top_p, generator)]
        seen = seen + unread
        yield unread[0]


def draw(logits: npt.NDArray[np.float64], temperature: float, top_p: float, generator: np.random.Generator) -> int:
    """One token id by nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751); the most likely at temperature 0."""
    if temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    weights = np.exp((logits[order] - logits[order[0]]) / temperature)
    cumulative = np.cumsum(weights / math.fsum(weights))
    # The smallest set of most likely tokens whose probability reaches top_p: at least one.
    kept = min(int(np.searchsorted(cumulative, top_p)) + 1, len(order))
    index = int(np.searchsorted(cumulative[:kept], generator.random() * cumulative[kept - 1], side="right"))
    return int(order[min(index, kept - 1)])
