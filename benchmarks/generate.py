"""Completions of our own code problems, 20 of each: our generator, one text at a time, and transformers' `generate`.

    python -m benchmarks.generate [--model PATH] [--quick]

All sides continue the same prompts with the same model, temperature and top-p, in one process with the same threads,
for the same number of tokens: no stop strings, so that transformers does no extra work. It runs with the best of
several batch sizes and of its two caches, found in earlier runs. Without a trained model a random GPT-2 of the preset
gpt2_mini is used, with the final norm scaled so that its next token has the entropy of a trained one: how many tokens
make up the nucleus counts for every side.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import stages.evaluate.libraries  # noqa: F401 (before torch)

# isort: split

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.corpora.python_source import write_python_corpus
from benchmarks.measurements import compare, interleave, record
from benchmarks.runs.training import MINI, mini_section
from stages.evaluate.generate.params import Sampling
from stages.evaluate.generator import GenerationRequest, generate, prompt_tokens
from stages.evaluate.model import open_model, open_tokenizer
from stages.evaluate.rows import draw, stop_at
from stages.formats.evaluation.problems import read_problems
from stages.formats.model_folder import MODEL
from stages.tokenizer.train import save_trained, train_on_documents

PROBLEMS = Path("problems/python.jsonl")
SAMPLES = 20
VOCABULARY = 4096
ENTROPY = 3.7
"""Nats: a perplexity of 40, as that GPT-2's when it is trained."""

WIDTHS = (48, 96, 144)
"""Of our rows: the default, and what larger jobs may set."""


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model if arguments.model.exists() else write_model(Path(folder))
        kind = "the trained model" if path == arguments.model else f"a random {MINI}"
        figures = measure(path, kind, *((4, 32, 1) if arguments.quick else (12, 128, 5)))
    record("generate", figures, quick=arguments.quick)


def measure(path: Path, kind: str, problems: int, tokens: int, runs: int) -> list[Any]:
    """Tokens per second of all sides."""
    model, tokenizer = open_model(path), open_tokenizer(path)
    prompts = [problem.prompt for problem in read_problems(PROBLEMS)[:problems] for _ in range(SAMPLES)]
    sampling = Sampling(temperature=0.8, top_p=0.95, max_new_tokens=tokens)
    batches = {(size, cache): partial(by_transformers, model, tokenizer, prompts, sampling, size, cache)
               for size in (20, 60, 120, 240) if size <= len(prompts) for cache in (None, "static")}  # fmt: skip
    size, cache = best(batches)
    widths = {width: partial(by_us, model, tokenizer, prompts, sampling, width) for width in WIDTHS}
    width = best(widths)
    speeds = interleave(
        {
            "ours": widths[width],
            "ours, width 48": widths[48],
            "one at a time": lambda: one_at_a_time(model, tokenizer, prompts[:: 2 * SAMPLES], sampling),
            "transformers": batches[size, cache],
        },
        runs,
    )
    figure = f"{len(prompts)} completions of {tokens} tokens by {kind}"
    by_hand = f"transformers' generate, its best: batches of {size}, {cache or 'dynamic'} cache"
    return [
        compare(
            f"{figure}, {width_name}",
            speeds[ours],
            speeds[peer],
            peer_name=name,
            unit="tokens/s",
            higher_is_better=True,
            libraries=["torch", "transformers"],
        )
        for peer, name in (("one at a time", "one text at a time, with a cache"), ("transformers", by_hand))
        for ours, width_name in (("ours", f"width {width}, the best"), ("ours, width 48", "width 48, the default"))
    ]


def best(sides: Mapping[Any, Callable[[], float]]) -> Any:
    """The fastest of one run each, after one that warms up."""
    next(iter(sides.values()))()
    speeds = {name: measure() for name, measure in sides.items()}
    return max(speeds, key=lambda name: speeds[name])


def by_us(model: Any, tokenizer: Any, prompts: list[str], sampling: Sampling, width: int) -> float:
    """The stage's own path."""
    requests = [GenerationRequest(prompt, seed, stop_at(()), sampling) for seed, prompt in enumerate(prompts)]
    began = time.perf_counter()
    written = sum(len(text.ids) for text in generate(model, tokenizer, requests, width))
    return written / (time.perf_counter() - began)


@torch.inference_mode()
def one_at_a_time(model: Any, tokenizer: Any, prompts: list[str], sampling: Sampling) -> float:
    """What the stage did before it had batches."""
    began = time.perf_counter()
    written = 0
    for seed, prompt in enumerate(prompts):
        unread, past = prompt_tokens(tokenizer, prompt), None
        generator = np.random.default_rng(seed)
        for _ in range(sampling.max_new_tokens):
            output = model(input_ids=torch.tensor([unread]), past_key_values=past, use_cache=True, logits_to_keep=1)
            past = output.past_key_values
            unread = draw(output.logits[:, -1], sampling.temperature, sampling.top_p, generator.random(1))
            written += 1
            if unread[0] == tokenizer.eos_token_id:
                break
    return written / (time.perf_counter() - began)


def by_transformers(
    model: Any, tokenizer: Any, prompts: list[str], sampling: Sampling, size: int, cache: str | None
) -> float:
    """`model.generate` over left-padded batches; what follows an end-of-sequence id is not counted."""
    end = tokenizer.eos_token_id
    began = time.perf_counter()
    written = 0
    for first in range(0, len(prompts), size):
        rows = [prompt_tokens(tokenizer, prompt) for prompt in prompts[first : first + size]]
        longest = max(map(len, rows))
        ids = torch.tensor([[end] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        result = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=0,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=end,
            pad_token_id=end,
            **({"cache_implementation": cache, "disable_compile": True} if cache else {}),
        )[:, longest:]
        ended = (result == end).int().cumsum(dim=1)
        written += int((ended - (result == end).int() == 0).sum())
    return written / (time.perf_counter() - began)


def write_model(folder: Path) -> Path:
    """A random GPT-2 of 4.3 million parameters, with a tokenizer of Python's own source."""
    write_python_corpus(folder / "documents", 4_000_000, 4_000_000)
    (folder / "tokenizer").mkdir()
    save_trained(train_on_documents(folder / "documents", 4_000_000, VOCABULARY, "gpt2"), folder / "tokenizer")
    torch.manual_seed(0)
    values = mini_section()["model"] | {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values)).eval()
    scale_to_entropy(model)
    model.save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(folder / "tokenizer").save_pretrained(folder / "model")
    return folder / "model"


@torch.inference_mode()
def scale_to_entropy(model: Any) -> None:
    """Scale the final norm until the next token's entropy is `ENTROPY`."""
    ids = torch.randint(1, VOCABULARY, (8, 64))
    low, high = 1.0, 1000.0
    while high / low > 1.01:
        scale = (low * high) ** 0.5
        model.transformer.ln_f.weight.fill_(scale)
        chances = torch.softmax(model(ids).logits, dim=-1)
        entropy = float(torch.special.entr(chances).sum(dim=-1).mean())
        low, high = (scale, high) if entropy > ENTROPY else (low, scale)


if __name__ == "__main__":
    main()
