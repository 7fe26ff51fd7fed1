"""What a training will cost: `python -m stages.train.commands.forecast [PARAMS]`.

Operations, hours and memory, from a model without weights, before data or a device are touched. `parrotflow why` prints
it where the training would run, with what the mixture comes to (`--data`), `parrotflow params` of what it composes; the
training itself prints it first.
"""

import argparse
from pathlib import Path
from typing import Any

from stages.formats.splits import TRAIN
from stages.formats.tokens import TOKENS, Manifest, TokenStore
from stages.runtime.entry import UserError, run_stage
from stages.runtime.launch.config import PRESETS, LaunchConfig, has_gpu, launch_config
from stages.runtime.section import PARAMS_FILE, check_section, read_params_file
from stages.train.commands import mixture
from stages.train.commands.groups import NOMINAL_VOCABULARY
from stages.train.forecast.forecast import make_forecast
from stages.train.model.build import HUB_COMMIT, source_folder
from stages.train.params import TrainParams


def main() -> None:
    """Print the forecast's lines."""
    parser = argparse.ArgumentParser(prog="python -m stages.train.commands.forecast", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("params", nargs="?", type=Path, default=PARAMS_FILE, help="default: %(default)s")
    parser.add_argument("--data", action="store_true", help="also whether the data can give what train.mixture asks")
    arguments = parser.parse_args()
    values = read_params_file(arguments.params)
    params = check_section("train", values.get("train"), TrainParams)
    if params.start_from and HUB_COMMIT.fullmatch(params.start_from):
        try:
            source_folder(params.start_from)
        except UserError as error:
            print(f"no forecast before the model is downloaded: {error}")
            return
    print("\n".join(make_forecast(params, vocabulary(values), launch()).lines))
    for line in mixture.lines(params) if arguments.data else ():
        print(line)


def vocabulary(values: dict[str, Any]) -> Manifest:
    """As large as params.yaml asks of a tokenizer that is trained, else as the token store is."""
    tokenizer = values.get("tokenizer") or {}
    size = tokenizer.get("vocabulary_size") if tokenizer.get("kind") == "bpe" else None
    if size is None and (TOKENS / TRAIN / "manifest.json").is_file():
        return TokenStore(TOKENS / TRAIN).manifest
    return Manifest("uint32", size or NOMINAL_VOCABULARY, 0, "", "", ())


def launch() -> LaunchConfig:
    """As training would be launched; one process, and a line that says so, where that is not known."""
    try:
        return launch_config()
    except (UserError, FileNotFoundError) as error:
        print(f"for one process, since the launch is not known: {error}")
        return LaunchConfig(PRESETS, 1, 1, on_cpu=not has_gpu(), sharded=False)


if __name__ == "__main__":
    run_stage(main)
