"""What a training will cost: `python -m stages.train.commands.forecast [PARAMS]`.

It prints operations, hours and memory, from a model without weights, before data or a device are touched.
`parrotflow params` prints the same for the parameters that it composes. `--check`, which `parrotflow why` and
`parrotflow run` use, also prints the mixture's shares and refuses a run that training would refuse for its memory or
its mixture.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages.formats.splits import TRAIN
from stages.formats.tokens import STORE_MANIFEST, TOKENS, Manifest, TokenStore
from stages.runtime.entry import STAGES_TO_DO, UserError, run_stage
from stages.runtime.hub import HUB_COMMIT
from stages.runtime.launch import PRESETS, LaunchConfig, has_gpu, launch_config
from stages.runtime.section import PARAMS_FILE, check_section, read_params_file, value_at
from stages.train.data.order import describe, open_order
from stages.train.forecast import Forecast, make_forecast
from stages.train.model.build import source_folder
from stages.train.params import TrainParams

LOCK = Path("dvc.lock")

DATA_SECTIONS = ("collect", "clean", "tokenizer", "tokenize")
"""Sections of params.yaml that decide which tokens there are."""

NOMINAL_VOCABULARY = 4096
"""Where neither params.yaml nor a token store says how large it is."""


def main() -> None:
    """Print the forecast's lines."""
    parser = argparse.ArgumentParser(prog="python -m stages.train.commands.forecast", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("params", nargs="?", type=Path, default=PARAMS_FILE, help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="refuse what the training would refuse here")
    arguments = parser.parse_args()
    values = read_params_file(arguments.params)
    params = check_section("train", values.get("train"), TrainParams)
    forecast = forecast_of(params, values, may_lack_source=arguments.check)
    if forecast:
        print("\n".join(forecast.lines), flush=True)
    if arguments.check:
        for line in mixture_lines(params):
            print(line)
    if forecast and arguments.check:
        forecast.check_fits()
    elif forecast and forecast.misfit:
        print(f"here it would be refused: {forecast.misfit}")


def forecast_of(params: TrainParams, values: dict[str, Any], may_lack_source: bool) -> Forecast | None:
    """The forecast, or None (with a printed note) if `start_from` names a model that is not here yet.

    That may be a commit of the Hub, which is downloaded when training starts; and, if so allowed, a folder, which
    another stage may make. Raises UserError where the model cannot be built.
    """
    try:
        if params.start_model:
            source_folder(params.start_model)
    except UserError as error:
        if not may_lack_source and not HUB_COMMIT.fullmatch(params.start_model or ""):
            raise
        print(f"no forecast before the model is here: {error}")
        return None
    return make_forecast(params, vocabulary(values), launch())


def mixture_lines(params: TrainParams) -> Iterator[str]:
    """What the mixture comes to, as training says it; none without one.

    Only for data that is there and stays: where they are still to be made, nothing is known of what it will give.
    Raises UserError where a source is missing, or would be read too often.
    """
    if params.mixture is None:
        return
    to_do = os.environ.get(STAGES_TO_DO, "").split()
    if "tokenize" in to_do or not (TOKENS / TRAIN / STORE_MANIFEST).is_file():
        yield "mixture: not known before the tokens are made"
        return
    order = open_order(TokenStore(TOKENS / TRAIN), params)
    yield from describe(order)


def vocabulary(values: dict[str, Any]) -> Manifest:
    """Return the vocabulary of the tokens if `values` ask for these, else one of the size that `values` ask for.

    A small corpus may give fewer tokens than `tokenizer.vocabulary_size`.
    """
    tokenizer = values.get("tokenizer") or {}
    size = tokenizer.get("vocabulary_size") if tokenizer.get("kind") == "bpe" else None
    if (TOKENS / TRAIN / STORE_MANIFEST).is_file() and (size is None or is_made_of(values)):
        return TokenStore(TOKENS / TRAIN).manifest
    return Manifest("uint32", size or NOMINAL_VOCABULARY, 0, "", "", ())


def is_made_of(values: dict[str, Any]) -> bool:
    """Whether the tokens were made by these values: by dvc.lock, since params.yaml may have changed after them."""
    lock = read_params_file(LOCK) if LOCK.is_file() else {}
    recorded = {
        key: value
        for stage in (lock.get("stages") or {}).values()
        for key, value in stage.get("params", {}).get(PARAMS_FILE.name, {}).items()
        if key.split(".")[0] in DATA_SECTIONS
    }
    if not recorded:
        now = read_params_file(PARAMS_FILE) if PARAMS_FILE.is_file() else {}
        recorded = {name: now.get(name) for name in DATA_SECTIONS}
    return all(value_at(values, key) == value for key, value in recorded.items())


def launch() -> LaunchConfig:
    """As training would be launched; one process, and a line that says so, where that is not known."""
    try:
        return launch_config()
    except (UserError, FileNotFoundError) as error:
        print(f"for one process, since the launch is not known: {error}")
        return LaunchConfig(PRESETS, 1, 1, on_cpu=not has_gpu(), sharded=False)


if __name__ == "__main__":
    run_stage(main)
