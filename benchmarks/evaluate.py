"""Bits per byte of held-out documents, compared with lm-eval: the same model, documents, windows and value.

    python -m benchmarks.evaluate [--quick]

Both sides begin with the documents' text and end with bits per byte; both encode within the time that is taken. Ours
scores lm-eval's windows without the closing end-of-sequence id, as lm-eval does, and the values are compared. A third
side is the stage `evaluate` as it is set by default: more context for each token, and the closing id. lm-eval runs with
its own default batch size, 1, with that of the stage `harness`, 4, and with 16. The models are the project's default
and the GPT-2 of the preset gpt2_mini, both with random weights: speed is the same.
"""

import stages.evaluate.libraries  # noqa: F401 (before torch)

# isort: split

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.corpora.python_source import write_python_corpus
from benchmarks.measurements import Measurement, compare, interleave, record
from benchmarks.runs.training import DEFAULT, MINI, default_section, mini_section
from stages.evaluate.harness.scoring import open_language_model
from stages.evaluate.likelihood.documents import ScoringPlan, Tokens, Window, WindowSizes, document_windows, encoded
from stages.evaluate.likelihood.score import score_batches, windows_at_once
from stages.evaluate.model import open_model, open_tokenizer
from stages.formats.documents import read_documents, shard_paths
from stages.tokenizer.train import save_trained, train_on_documents

CONTEXT, VOCABULARY = 256, 4096
"""Of the model."""

SAME_WINDOWS, STAGE_WINDOWS = WindowSizes(CONTEXT, CONTEXT), WindowSizes(CONTEXT, CONTEXT * 3 // 4)
"""lm-eval's, and the stage's default."""

PEER_BATCHES = (1, 4, 16)
"""Of lm-eval."""

RELATIVE = 1e-6


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    models = {DEFAULT: default_section()["model"], f"a {MINI}": mini_section()["model"]}
    here, figures = Path.cwd(), []
    for name, config in models.items():
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            figures += measure(name, config, 50_000 if quick else 200_000, runs=1 if quick else 9)
            os.chdir(here)
    record("evaluate", figures, quick=quick)


def measure(model: str, config: dict[str, Any], limit: int, runs: int) -> list[Measurement]:
    """Seconds of each side as kilobytes of text per second."""
    size = write_python_corpus(Path("documents"), limit, 16_000_000) / 1e3
    write_model(config)
    ours, lm = open_model(Path("model")), open_language_model()
    values: dict[str, float] = {}
    peers = {batch: f"lm-eval {version('lm_eval')}, batch size {batch}" for batch in PEER_BATCHES}
    sides = {
        "ours": timed(values, "ours", lambda: score_windows(ours, read_tokens())),
        "stage": timed(values, "stage", lambda: score_as_the_stage(ours, read_tokens())),
    }
    sides |= {name: timed(values, name, partial(score_by_lm_eval, lm, batch)) for batch, name in peers.items()}
    sides["ours"]()  # the first pass warms up
    speeds = {name: [size / seconds for seconds in taken] for name, taken in interleave(sides, runs).items()}
    for peer in peers.values():
        if not math.isclose(values["ours"], values[peer], rel_tol=RELATIVE):
            raise SystemExit(f"{values['ours']} nats, but {values[peer]} by {peer}")
    bits = {name: nats / math.log(2) / size / 1e3 for name, nats in values.items()}
    same = f"the same windows, {bits['ours']:.6f} bits per byte on both sides"
    rows = [(same, "ours", peer) for peer in peers.values()]
    rows.append((f"as the stage does by default ({bits['stage']:.6f} bits per byte)", "stage", peers[PEER_BATCHES[1]]))
    return [
        compare(
            f"{size:.0f} kB of Python, {model}: {figure}",
            speeds[side],
            speeds[peer],
            peer_name=peer,
            unit="kB/s",
            higher_is_better=True,
            libraries=["torch", "transformers", "lm_eval"],
        )
        for figure, side, peer in rows
    ]


def write_model(config: dict[str, Any]) -> None:
    """A tokenizer of the documents, and a model of a `train.model` section with random weights."""
    Path("tokenizer").mkdir()
    save_trained(train_on_documents(shard_paths(Path("documents")), 20_000_000, VOCABULARY, "gpt2"), Path("tokenizer"))
    tokenizer = open_tokenizer(Path("tokenizer"))
    torch.manual_seed(0)
    eos = tokenizer.eos_token_id
    ids = {"vocab_size": len(tokenizer), "bos_token_id": eos, "eos_token_id": eos}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**config | ids)).save_pretrained("model")
    tokenizer.save_pretrained("model")


def timed(values: dict[str, float], name: str, score: Callable[[], float]) -> Callable[[], float]:
    """A side: its seconds, its value kept in `values`."""

    def run() -> float:
        start = time.perf_counter()
        values[name] = score()
        return time.perf_counter() - start

    return run


def read_tokens() -> Tokens:
    """The documents as the stage encodes them."""
    tokenizer = open_tokenizer(Path("model"))
    return encoded((document.text for document in read_documents(Path("documents"))), tokenizer, tokenizer.eos_token_id)


class LmEvalWindows(ScoringPlan):
    """Disjoint windows, the last of a document reaching back, and no closing end-of-sequence id."""

    def windows(self) -> Iterator[Window]:
        """Those of all documents."""
        for number, length in enumerate(self.tokens.lengths.tolist()):
            *disjoint, last = document_windows(number, length - 1, CONTEXT, CONTEXT)
            yield from disjoint
            yield Window(number, max(0, last.stop - CONTEXT), last.scored_from, last.stop)


def score_windows(model: PreTrainedModel, tokens: Tokens) -> float:
    """The nats of lm-eval's windows, by our scorer."""
    plan = LmEvalWindows(tokens, SAME_WINDOWS, windows_at_once(SAME_WINDOWS))
    return float(score_batches(model, plan).documents.sum())


def score_as_the_stage(model: PreTrainedModel, tokens: Tokens) -> float:
    """The nats of the stage's own windows."""
    plan = ScoringPlan(tokens, STAGE_WINDOWS, windows_at_once(STAGE_WINDOWS))
    return float(score_batches(model, plan).documents.sum())


def score_by_lm_eval(lm: HFLM, batch_size: int) -> float:
    """The nats of all documents by lm-eval's own rolling log-likelihood."""
    lm.batch_size_per_gpu = batch_size
    texts = [document.text for document in read_documents(Path("documents"))]
    requests = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(texts)]
    return -math.fsum(lm.loglikelihood_rolling(requests))


if __name__ == "__main__":
    main()
