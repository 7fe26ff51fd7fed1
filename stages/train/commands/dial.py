"""The recipe for some compute: `python -m stages.train.commands.dial PARAMS --tflop 20`, or `--seconds 600`.

It prints JSON: the values for params.yaml by their dotted keys, and what is said of them.
`parrotflow params compute=20` writes the values.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from stages.formats.splits import TRAIN
from stages.formats.tokens import STORE_MANIFEST, TOKENS, Manifest, TokenStore
from stages.runtime.entry import UserError, run_stage
from stages.runtime.launch import LaunchConfig
from stages.runtime.section import PARAMS_FILE, check_section, read_params_file
from stages.train.commands.forecast import launch, vocabulary
from stages.train.dial.law import LAW
from stages.train.dial.recipe import LEAST_STEPS, Counted, Recipe, best_recipe, model_of
from stages.train.dial.timing import Timed, timed
from stages.train.forecast import duration, scaled
from stages.train.model.build import flops_per_token, model_without_weights
from stages.train.params import TrainParams

DATA_SECTIONS = ("collect", "clean", "tokenizer", "tokenize")
"""Of params.yaml: those that say which tokens there are."""

MEASURED_VOCABULARY, MEASURED_LENGTH = 4096, 256
"""Of the runs behind the law."""


def main() -> None:
    """Print the values and what is said of them."""
    parser = argparse.ArgumentParser(prog="python -m stages.train.commands.dial", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("params", type=Path, help="a file as params.yaml")
    compute = parser.add_mutually_exclusive_group(required=True)
    compute.add_argument("--tflop", type=float, help="compute of the training")
    compute.add_argument("--seconds", type=float, help="time of its steps on this machine")
    arguments = parser.parse_args()
    values = read_params_file(arguments.params)
    params = check_section("train", values.get("train"), TrainParams)
    dial = Dial(params, vocabulary(values), tokens_of_corpus(values))
    by_time = arguments.tflop is None
    recipe, lines = dial.for_seconds(arguments.seconds) if by_time else dial.for_flops(arguments.tflop * 1e12)
    print(json.dumps({"values": {f"train.{key}": value for key, value in recipe.values.items()}, "lines": lines}))


def tokens_of_corpus(values: dict[str, Any]) -> int | None:
    """Of the train split, if it was made of the same corpus as `values` ask for."""
    now = read_params_file(PARAMS_FILE) if PARAMS_FILE.is_file() else {}
    same = all(values.get(name) == now.get(name) for name in DATA_SECTIONS)
    return TokenStore(TOKENS / TRAIN).manifest.tokens if same and (TOKENS / TRAIN / STORE_MANIFEST).is_file() else None


class Dial:
    """Recipes for a corpus and a vocabulary."""

    def __init__(self, params: TrainParams, tokens: Manifest, corpus_tokens: int | None) -> None:
        """Raises UserError where the model's size is given."""
        if params.start_from:
            raise UserError("compute: a model that is continued has its size; set train.start_from: null")
        self.params = params
        self.vocabulary = tokens
        self.corpus_tokens = corpus_tokens

    def for_flops(self, flops: float) -> tuple[Recipe, list[str]]:
        """The best recipe by the law, and what is said of it. Raises UserError for too little compute."""
        recipe = best_recipe(flops, self.params.sequence_length, self._counted, self.corpus_tokens)
        if recipe is None:
            raise UserError(
                f"compute: {scaled(flops, 'FLOP')} are too little for {LEAST_STEPS} steps of the smallest model"
            )
        return recipe, [*self._lines(recipe)]

    def for_seconds(self, seconds: float) -> tuple[Recipe, list[str]]:
        """The same for a time of training steps: the speed is measured, or taken from the last run here.

        A smaller model does fewer operations a second, so compute and model are sought in turns. Raises UserError where
        no speed is known.
        """
        config = launch()
        found = self._timed(self.for_flops(1e12)[0], config)
        recipe = self.for_flops(seconds * found.flops_per_second)[0]
        for _ in range(3):
            found, before = self._timed(recipe, config), recipe
            recipe = self.for_flops(seconds * found.flops_per_second)[0]
            if recipe.model == before.model:
                break
        took = recipe.flops / found.flops_per_second
        line = f"time: {duration(took)} of training steps at {scaled(found.flops_per_second, 'FLOP/s')}, {found.source}"
        return recipe, [*self._lines(recipe), line]

    def _timed(self, recipe: Recipe, config: LaunchConfig) -> Timed:
        return timed(self.params.model_copy(update=self._fields(recipe)), self.vocabulary, config)

    def _fields(self, recipe: Recipe) -> dict[str, Any]:
        """Those of the section that make a step what it is."""
        return {
            "model": recipe.values["model"],
            "global_batch_size": recipe.rows,
            "batch_doublings": [],
            "max_steps": recipe.steps,
        }

    def _counted(self, width: int) -> Counted:
        params = self.params.model_copy(update={"model": model_of(width, self.params.sequence_length)})
        model = model_without_weights(params, self.vocabulary)
        return Counted(width, model.num_parameters(), flops_per_token(model, params.sequence_length))

    def _lines(self, recipe: Recipe) -> list[str]:
        model = recipe.values["model"]
        low, high = LAW.measured_tflop
        tflop = in_tflop(recipe.flops)
        bits = LAW.bits_per_byte(recipe.model.parameters, recipe.flops, recipe.tokens, self.corpus_tokens)
        where = "within it" if LAW.covers(recipe.flops) else "outside of it, so this is extrapolated"
        lines = [
            f"dial: {tflop} TFLOP: width {recipe.model.width}, {model['num_hidden_layers']} layers; "
            f"{recipe.steps:,} steps of {recipe.rows} rows of {recipe.sequence_length} tokens",
            f"law: about {bits:.3g} bits per byte of other Python code by the fit of experiments/dial.yaml, "
            f"measured from {low:g} to {high:g} TFLOP: {tflop} is {where}",
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
        return [*lines, f"corpus: {epochs:.2f} epochs over {self.corpus_tokens:,} tokens"]


def in_tflop(flops: float) -> str:
    """Three digits, and all of them before the point."""
    tflop = flops / 1e12
    return f"{tflop:,.0f}" if tflop >= 100 else f"{tflop:.3g}"


if __name__ == "__main__":
    run_stage(main)
