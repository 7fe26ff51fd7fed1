"""The recipe for a compute budget: `python -m stages.train.commands.dial PARAMS --tflop 20`, or `--seconds 600`.

It prints JSON: values for params.yaml, and explanations. `parrotflow params compute=20` writes the values.
"""

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    # As in `launch.environment`, before torch reads them: spinning threads are slow when other programs use the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from stages.formats.tokens import STORE_MANIFEST, TOKENS, TRAIN, Manifest, TokenStore, read_of_corpus
from stages.runtime.errors import UserError
from stages.runtime.launch import LaunchConfig, launch_config
from stages.runtime.section import check_section, read_params_file, value_at
from stages.runtime.stage import run_stage
from stages.train.commands.forecast import duration, is_made_of, scaled, vocabulary
from stages.train.compute.data.order import open_order
from stages.train.compute.hardware import CPU_MICRO_BATCH_TOKENS, given_micro_batch_size, resolve_precision
from stages.train.compute.model.attention import UNMASKED
from stages.train.compute.model.flops import flops_per_token
from stages.train.compute.model.head_rows import HeadRows, probabilities
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.optim.build import build_optimizers
from stages.train.dial import LAW, MIN_STEPS, Counted, Recipe, best_recipe, model_of
from stages.train.monitoring.throughput import device_name
from stages.train.params import TrainParams
from stages.train.planned import model_without_weights

HELPFUL_EPOCHS = 4.0
"""Up to this many, a repeated token is worth nearly as much as a new one (Muennighoff et al. 2023, section 6)."""

MEASURED_VOCABULARY, MEASURED_LENGTH = 32_768, 256
"""Vocabulary and sequence length of the runs to which the law was fitted."""

TIMING_SECONDS = 2.0
"""How long to time training steps, after one warm-up step."""


def main() -> None:
    """Print the values and their explanations."""
    parser = argparse.ArgumentParser(prog="python -m stages.train.commands.dial", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("params", type=Path, help="a file as params.yaml")
    compute = parser.add_mutually_exclusive_group(required=True)
    compute.add_argument("--tflop", type=float, help="compute of the training")
    compute.add_argument("--seconds", type=float, help="time of its steps on this machine")
    arguments = parser.parse_args()
    values = read_params_file(arguments.params)
    params = check_section("train", values.get("train"), TrainParams)
    dial = Dial(params, vocabulary(values), tokens_of_corpus(values, params), of_packages(values))
    by_time = arguments.tflop is None
    recipe, lines = dial.for_seconds(arguments.seconds) if by_time else dial.for_flops(arguments.tflop * 1e12)
    print(json.dumps({"values": {f"train.{key}": value for key, value in recipe.values.items()}, "lines": lines}))


def of_packages(values: dict[str, Any]) -> bool:
    """True if the corpus is Python packages, to which the law was fitted."""
    sources = value_at(values, "collect.sources") or []
    return all(isinstance(source, dict) and source.get("kind") == "packages" for source in sources)


def tokens_of_corpus(values: dict[str, Any], params: TrainParams) -> int | None:
    """Tokens of the train split that are trained on; None if the split was not made from `values`."""
    if not (TOKENS / TRAIN / STORE_MANIFEST).is_file() or not is_made_of(values):
        return None
    store = TokenStore(TOKENS / TRAIN)
    return open_order(store, params).index.rows * params.sequence_length if params.mixture else store.manifest.tokens


class Dial:
    """Recipes for a corpus and a vocabulary."""

    def __init__(
        self, params: TrainParams, tokens: Manifest, corpus_tokens: int | None, is_python: bool = True
    ) -> None:
        """Raises UserError if `params.start_from` fixes the model's size. `is_python`: as `of_packages`."""
        if params.start_from:
            raise UserError(
                "compute chooses a model's size, but train.start_from has one already; set train.start_from: null"
            )
        self.params = params
        self.vocabulary = tokens
        self.corpus_tokens = corpus_tokens
        self.is_python = is_python

    def for_flops(self, flops: float) -> tuple[Recipe, list[str]]:
        """The best recipe by the law, and its explanation. Raises UserError if there is too little compute."""
        recipe = best_recipe(flops, self.params.sequence_length, self._counted, self.corpus_tokens)
        if recipe is None:
            raise UserError(f"compute: {scaled(flops, 'FLOP')} are too few for {MIN_STEPS} steps of the smallest model")
        return recipe, [*self._lines(recipe)]

    def for_seconds(self, seconds: float) -> tuple[Recipe, list[str]]:
        """The same for a duration of training steps, at the speed measured now.

        A smaller model does fewer operations per second, so compute and model are chosen in turns.
        """
        config = launch_config()
        speed = self._flops_per_second(self.for_flops(1e12)[0], config)
        recipe = self.for_flops(seconds * speed)[0]
        for _ in range(3):
            speed, before = self._flops_per_second(recipe, config), recipe
            recipe = self.for_flops(seconds * speed)[0]
            if recipe.model == before.model:
                break
        device = device_name(torch.device(config.device_type))
        times = f", times {config.processes} processes" if config.processes > 1 else ""
        took = f"{duration(recipe.flops / speed)} of training steps at {scaled(speed, 'FLOP/s')}"
        return recipe, [*self._lines(recipe), f"time: {took}, measured now with this model on {device}{times}"]

    def _flops_per_second(self, recipe: Recipe, config: LaunchConfig) -> float:
        # Dotted keys (rates, warm-up) do not change the speed.
        fields = {key: value for key, value in recipe.values.items() if "." not in key}
        return flops_per_second(self.params.model_copy(update=fields), self.vocabulary, config)

    def _counted(self, width: int) -> Counted:
        params = self.params.model_copy(update={"model": model_of(width, self.params.sequence_length)})
        model = model_without_weights(params, self.vocabulary)
        return Counted(width, flops_per_token(model, params.sequence_length, params.head_rows))

    def _lines(self, recipe: Recipe) -> list[str]:
        model = recipe.values["model"]
        low, high = LAW.measured_tflop
        tflop = f"{recipe.flops / 1e12:,.0f}" if recipe.flops >= 1e14 else f"{recipe.flops / 1e12:.3g}"
        bits = LAW.bits_per_byte(recipe.model.flops_per_token, recipe.flops, self.corpus_tokens)
        where = "within it" if LAW.covers(recipe.flops) else "outside of it, so this is extrapolated"
        lines = [
            f"dial: {tflop} TFLOP: width {recipe.model.width}, {model['num_hidden_layers']} layers; "
            f"{recipe.steps:,} steps of {recipe.rows} rows of {recipe.sequence_length} tokens",
            f"law: about {bits:.3g} bits per byte on the packages of experiments/dial.yaml (your corpus's differ), "
            f"measured from {low:g} to {high:g} TFLOP: {tflop} is {where}"
            if self.is_python
            else "law: the size follows a fit to Python packages (experiments/dial.yaml); it predicts no loss for your "
            "corpus",
        ]
        size = self.vocabulary.vocab_size
        if (size, recipe.sequence_length) != (MEASURED_VOCABULARY, MEASURED_LENGTH):
            lines.append(
                f"law: measured with a vocabulary of {MEASURED_VOCABULARY:,} and rows of {MEASURED_LENGTH} tokens; "
                f"here they are {size:,} and {recipe.sequence_length}, so this is extrapolated"
            )
        if self.corpus_tokens is None:
            lines.append("corpus: not tokenized yet, so its repetition is not counted (first: parrotflow run tokenize)")
            return lines
        epochs = recipe.tokens / self.corpus_tokens
        of = " of the mixture's sources, which it reads unequally often" if self.params.mixture else ""
        lines.append(f"corpus: {read_of_corpus(recipe.tokens, self.corpus_tokens)}{of}")
        if epochs > HELPFUL_EPOCHS:
            lines.append("corpus: this repeats the data too often; more text would help")
        return lines


def flops_per_second(params: TrainParams, vocabulary: Manifest, config: LaunchConfig) -> float:
    """The speed of a few steps on one device, not compiled, times the number of processes."""
    precision = resolve_precision(params.precision, config.device_type)
    params = params.model_copy(update={"precision": precision})
    rows = given_micro_batch_size(params, config.device_type, params.global_batch_size)
    micro_batch_size = rows or CPU_MICRO_BATCH_TOKENS // params.sequence_length or 1
    seconds = step_seconds(params, vocabulary, micro_batch_size, torch.device(config.device_type))
    flops = flops_per_token(model_without_weights(params, vocabulary), params.sequence_length, params.head_rows)
    return flops * params.global_batch_size * params.sequence_length / seconds * config.processes


def step_seconds(params: TrainParams, vocabulary: Manifest, micro_batch_size: int, device: torch.device) -> float:
    """The median time of a training step on random tokens."""
    model = AutoModelForCausalLM.from_config(model_without_weights(params, vocabulary).config, dtype=torch.float32)
    if params.attention == "causal":
        model.set_attn_implementation(UNMASKED)
    loss = CausalLoss(model.train(), params).to(device)
    optimizers = build_optimizers(model, params.optimizer, params.precision)
    shape = (params.global_batch_size, params.sequence_length)
    ids = torch.randint(vocabulary.vocab_size, shape, device=device)
    positions = torch.arange(shape[1], device=device)
    head = None
    if params.head_rows is not None:
        counts = np.zeros(vocabulary.vocab_size, dtype=np.int64)
        head = HeadRows(0, probabilities(counts, min(params.head_rows, len(counts))))

    def step() -> float:
        began = time.perf_counter()
        drawn = head.draw(0, device) if head else None
        for rows in torch.split(ids, micro_batch_size):
            torch.autograd.backward(loss(rows, rows, positions.expand_as(rows), drawn).sum() / ids.numel())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), params.max_gradient_norm)
        optimizers.step(1.0)
        for parameter in model.parameters():
            parameter.grad = None
        norm.item()  # waits for the device
        return time.perf_counter() - began

    step()
    times = [step()]
    while sum(times) < TIMING_SECONDS:
        times.append(step())
    return median(times)


if __name__ == "__main__":
    run_stage(main)
