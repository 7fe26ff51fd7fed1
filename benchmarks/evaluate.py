"""Bits per byte of held-out documents, compared with lm-eval: the same model, documents, windows and value.

    python -m benchmarks.evaluate [--quick]

Both sides begin with the documents' text and end with bits per byte; both encode within the time that is taken. Ours
scores lm-eval's windows without the closing end-of-sequence id, as lm-eval does, and the values are compared. A third
side is the stage `evaluate` as it is set by default: more context for each token, and the closing id. lm-eval runs with
the batch size that the stage `harness` gives it, and with its own default, 1.
"""

import stages.evaluate.threads  # noqa: F401 (before torch)
from stages.evaluate.harness import libraries  # noqa: F401 (before lm-eval)

# isort: split

import argparse
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from benchmarks.corpora.python_source import write_python_corpus
from benchmarks.measurements import Measurement, compare, interleave, record
from benchmarks.runs.training import MINI
from stages.evaluate.__main__ import CORE_BATCH
from stages.evaluate.harness.scoring import DEFAULT_BATCH, open_language_model
from stages.evaluate.likelihood.score import Plan, score_documents
from stages.evaluate.likelihood.tokens import stored_tokens
from stages.evaluate.likelihood.windows import Window, WindowSizes, batches, document_windows
from stages.evaluate.model import open_model, open_tokenizer
from stages.formats.documents import read_documents, shard_paths
from stages.formats.tokens import TokenStore
from stages.tokenize.encode import Encoding, write_store
from stages.tokenize.parity import choose_engine
from stages.tokenize.vocabulary import read_vocabulary
from stages.tokenizer.save import save_trained
from stages.tokenizer.train import sample, train_bpe

CONTEXT, VOCABULARY = 256, 4096
"""Of the model."""

RELATIVE = 1e-6


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        figures = measure(50_000 if quick else 200_000, runs=1 if quick else 9)
        os.chdir(here)
    record("evaluate", figures)


def measure(limit: int, runs: int) -> list[Measurement]:
    """Seconds of each side as kilobytes of text per second."""
    size = write_python_corpus(Path("documents"), limit, 16_000_000) / 1e3
    write_model()
    ours, theirs, default = open_model(Path("model")), open_language_model(Path("model")).lm, open_language_model().lm
    default.batch_size_per_gpu = 1
    values: dict[str, float] = {}
    sides = {
        "ours": timed(values, "ours", lambda: score_windows(ours, encoded())),
        "lm-eval": timed(values, "lm-eval", lambda: score_by_lm_eval(theirs)),
        "lm-eval, batch 1": timed(values, "lm-eval, batch 1", lambda: score_by_lm_eval(default)),
        "stage": timed(values, "stage", lambda: score_as_the_stage(ours, encoded())),
    }
    sides["ours"]()  # the first pass warms up
    speeds = {name: [size / seconds for seconds in taken] for name, taken in interleave(sides, runs).items()}
    for peer in ("lm-eval", "lm-eval, batch 1"):
        if not math.isclose(values["ours"], values[peer], rel_tol=RELATIVE):
            raise SystemExit(f"{values['ours']} nats, but {values[peer]} by {peer}")
    bits = {name: nats / math.log(2) / size / 1e3 for name, nats in values.items()}
    what = f"{size:.0f} kB of Python, a {MINI}"
    rows = [
        (f"the same windows, {bits['ours']:.6f} bits per byte on both sides", "ours", "lm-eval", DEFAULT_BATCH),
        (f"the same windows, {bits['ours']:.6f} bits per byte on both sides", "ours", "lm-eval, batch 1", 1),
        (f"as the stage does by default ({bits['stage']:.6f} bits per byte)", "stage", "lm-eval", DEFAULT_BATCH),
    ]
    return [
        compare(
            f"{what}: {figure}",
            speeds[side],
            speeds[peer],
            peer_name=f"lm-eval {version('lm_eval')}, batch size {batch}",
            unit="kB/s",
            higher_is_better=True,
            libraries=["torch", "transformers", "lm_eval"],
        )
        for figure, side, peer, batch in rows
    ]


def write_model() -> None:
    """A tokenizer of the documents and the GPT-2 with random weights: speed is the same."""
    Path("tokenizer").mkdir()
    save_trained(train_bpe(sample(Path("documents"), 20_000_000), VOCABULARY, "gpt2"), Path("tokenizer"))
    tokenizer = open_tokenizer(Path("tokenizer"))
    torch.manual_seed(0)
    eos = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=CONTEXT, n_embd=256, n_layer=4, n_head=4, bos_token_id=eos,
        eos_token_id=eos, activation_function="gelu_pytorch_tanh",
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained("model")
    tokenizer.save_pretrained("model")


def timed(values: dict[str, float], name: str, score: Callable[[], float]) -> Callable[[], float]:
    """A side: its seconds, its value kept in `values`."""

    def run() -> float:
        start = time.perf_counter()
        values[name] = score()
        return time.perf_counter() - start

    return run


def encoded() -> TokenStore:
    """The documents as the stage `tokenize` encodes them, no cache."""
    for old in (".parrotflow", "store"):
        shutil.rmtree(old, ignore_errors=True)
    Path("store").mkdir()
    shards = shard_paths(Path("documents"))
    vocabulary = read_vocabulary(Path("tokenizer"))
    engine = choose_engine("fastokens", vocabulary.tokenizer_json, shards, 1_000_000)
    write_store(shards, Encoding(vocabulary, engine), Path("store"))
    return TokenStore(Path("store"))


class LmEvalWindows(Plan):
    """Disjoint windows, the last of a document reaching back, and no closing end-of-sequence id."""

    @cached_property
    def batches(self) -> list[list[Window]]:
        """Windows that the model reads at once."""
        windows: list[Window] = []
        for number, length in enumerate(self.tokens.lengths.tolist()):
            *disjoint, last = document_windows(number, length - 1, CONTEXT, CONTEXT)
            windows += [*disjoint, Window(number, max(0, last.stop - CONTEXT), last.scored_from, last.stop)]
        return batches(windows, self.batch_size)


def score_windows(model: PreTrainedModel, store: TokenStore) -> float:
    """The nats of lm-eval's windows, by our scorer."""
    plan = LmEvalWindows(stored_tokens(store), WindowSizes(CONTEXT, CONTEXT), CORE_BATCH)
    return float(score_documents(model, plan).sum())


def score_as_the_stage(model: PreTrainedModel, store: TokenStore) -> float:
    """The nats of the stage's own windows."""
    plan = Plan(stored_tokens(store), WindowSizes(CONTEXT, CONTEXT * 3 // 4), CORE_BATCH)
    return float(score_documents(model, plan).sum())


def score_by_lm_eval(lm: HFLM) -> float:
    """The nats of all documents by lm-eval's own rolling log-likelihood."""
    texts = [document.text for document in read_documents(Path("documents"))]
    requests = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(texts)]
    return -math.fsum(lm.loglikelihood_rolling(requests))


if __name__ == "__main__":
    main()
