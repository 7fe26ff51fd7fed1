"""What a training will cost: `python -m stages.train.commands.forecast [PARAMS]`.

It prints operations, time, and the state that must fit into memory, computed from a model without weights. The time
assumes the speed of the last training of this model, finished or stopped. Activations are not counted: the first steps
of a run show whether they fit. `parrotflow params` prints the same for the parameters that it composes. `--check`,
which `parrotflow why` and `parrotflow run` use, also prints the mixture's shares and the step at which training
continues, and fails if training would for its memory, mixture or trackers.
"""

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedConfig

from stages.formats.model_folder import CHECKPOINTS
from stages.formats.reports import read_json
from stages.formats.revision.execution import TRAIN_SPEED
from stages.formats.tokens import STORE_MANIFEST, TOKENS, TRAIN, Manifest, TokenStore, read_of_corpus
from stages.runtime.errors import STAGES_TO_DO, UserError
from stages.runtime.hub import HUB_COMMIT
from stages.runtime.launch import LaunchConfig, launch_config
from stages.runtime.preflight import recorded_stages
from stages.runtime.section import PARAMS_FILE, check_section, read_params_file, value_at
from stages.runtime.stage import run_stage
from stages.train.checkpoint.identity import fingerprint, identity
from stages.train.checkpoint.manifest import CHECKPOINT_MANIFEST, read_manifest
from stages.train.compute.data.order import open_order
from stages.train.compute.hardware import resolve_precision, should_compile
from stages.train.compute.model.flops import flops_per_token
from stages.train.compute.model.source import source_folder
from stages.train.compute.optim.build import build_optimizers
from stages.train.compute.optim.settings import Precision
from stages.train.monitoring.params import MonitoringParams
from stages.train.monitoring.report import check_trackers
from stages.train.monitoring.throughput import device_name
from stages.train.origins import describe_order
from stages.train.params import TrainParams
from stages.train.planned import model_without_weights, without_values

DATA_SECTIONS = ("collect", "clean", "tokenizer", "tokenize")
"""Sections of params.yaml that the tokens depend on."""

StatePart = Literal["weights", "gradients", "optimizer"]


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
        check_trackers(check_section("monitoring", values.get("monitoring"), MonitoringParams))
        for line in lines_of_tokens(params):
            print(line)
    if forecast and arguments.check:
        should_compile(params, forecast.flops_per_token, torch.device(forecast.launch.device_type))
        forecast.check_fits()
    elif forecast and forecast.misfit:
        print(f"here it would be refused: {forecast.misfit}")


@dataclass(frozen=True)
class Forecast:
    """The cost of a whole run, including steps already done."""

    params: TrainParams
    """`precision` is resolved: never auto."""
    launch: LaunchConfig
    parameters: int
    """As trained, with the vocabulary padded."""
    flops_per_token: int
    vocabulary_size: int
    corpus_tokens: int
    """0 if the corpus is not tokenized yet."""
    state: Mapping[StatePart, int]
    """Bytes that each process keeps between steps."""
    capacity: int
    """Bytes of memory per process: its GPU's, or an equal share of the machine's."""
    tokens_per_second: float | None
    """The speed of all processes in the last training, finished or stopped; None if its model or hardware differs."""

    @property
    def memory(self) -> str:
        """The size of each part of the state, their sum, and the capacity."""
        parts = " + ".join(f"{name} {scaled(size, 'B')}" for name, size in self.state.items())
        return f"{parts} = {scaled(sum(self.state.values()), 'B')} of {scaled(self.capacity, 'B')}"

    @property
    def lines(self) -> list[str]:
        """Model, time and memory, one line each."""
        device, rate = device_name(torch.device(self.launch.device_type)), self.tokens_per_second
        time = f"unknown until this model has been trained on {device} in {self.params.precision}"
        if rate is not None:
            took = duration(self.params.tokens / rate)
            time = f"about {took} at {rate:,.0f} tokens/s, measured for this model on {device}"
        tokens, size = f"{self.params.tokens:,} tokens", f" if the vocabulary has {self.vocabulary_size:,} tokens"
        if self.corpus_tokens:
            tokens, size = read_of_corpus(self.params.tokens, self.corpus_tokens), ""
            if "tokenize" in os.environ.get(STAGES_TO_DO, "").split():
                tokens += ", as it was last time,"
        each = "the process" if self.launch.processes == 1 else f"each of {self.launch.processes} processes"
        return [
            f"model: {self.parameters:,} parameters{size}, {scaled(self.flops_per_token, 'FLOP')} per token; "
            f"{tokens} in {self.params.max_steps:,} steps are "
            f"{scaled(self.params.tokens * self.flops_per_token, 'FLOP')}",
            f"time: {time}",
            f"memory: {self.memory} in {each}, and activations ({self.params.precision})",
        ]

    @property
    def misfit(self) -> str:
        """An error message if the state alone does not fit; else empty."""
        if sum(self.state.values()) <= self.capacity:
            return ""
        shard = "" if self.launch.sharded else "shard the model over several GPUs (PARROTFLOW_LAUNCH=fsdp2) or "
        return f"train: the run cannot fit: {self.memory} for each process; {shard}choose a smaller model"

    def check_fits(self) -> None:
        """Raise UserError if the state alone does not fit."""
        if self.misfit:
            raise UserError(self.misfit)


def forecast_of(params: TrainParams, values: dict[str, Any], may_lack_source: bool) -> Forecast | None:
    """The forecast, or None (with a printed note) if `start_from` names a model that is not on this machine yet.

    This may be a Hub commit, which training downloads, or with `may_lack_source` a missing folder, which another stage
    may write. Raises UserError if the model cannot be built.
    """
    try:
        if params.start_model:
            source_folder(params.start_model)
    except UserError as error:
        is_missing = may_lack_source and not Path(params.start_model or "").is_dir()
        if not is_missing and not HUB_COMMIT.fullmatch(params.start_model or ""):
            raise
        print(f"no forecast before the model is here: {error}")
        return None
    return make_forecast(params, vocabulary(values), launch_config())


def lines_of_tokens(params: TrainParams) -> Iterator[str]:
    """Yield the mixture's shares, as training prints them, and the step at which training continues.

    Neither is known until `tokenize` has run. Raises UserError if the tokens lack a source.
    """
    to_do = os.environ.get(STAGES_TO_DO, "").split()
    if "tokenize" in to_do or not (TOKENS / TRAIN / STORE_MANIFEST).is_file():
        if params.mixture:
            yield "mixture: not known before the tokens are made"
        return
    store = TokenStore(TOKENS / TRAIN)
    if params.mixture:
        yield from describe_order(open_order(store, params), store)
    with suppress(UserError, OSError, ValueError):  # what it starts from may not be here yet
        checkpoints = (CHECKPOINTS / fingerprint(identity(params, store))).glob(f"step-????????/{CHECKPOINT_MANIFEST}")
        if last := max(checkpoints, default=None):
            yield f"checkpoint: continues at step {read_manifest(last.parent).step:,} of {params.max_steps:,}"


def vocabulary(values: dict[str, Any]) -> Manifest:
    """The manifest of the tokens if they were made from `values`, else an empty one with the vocabulary size asked for.

    A small corpus may give fewer tokens than `tokenizer.vocabulary_size`. Other kinds have as many as last time.
    """
    tokenizer = values.get("tokenizer") or {}
    size = tokenizer.get("vocabulary_size") if tokenizer.get("kind") == "bpe" else None
    made = TokenStore(TOKENS / TRAIN).manifest if (TOKENS / TRAIN / STORE_MANIFEST).is_file() else None
    if made and is_made_of(values):
        return made
    return Manifest("uint32", size or (made.vocab_size if made else 32_768), 0, "", "", ())


def is_made_of(values: dict[str, Any]) -> bool:
    """True if the tokens were made from these values, according to dvc.lock."""
    recorded = {
        key: value
        for name, stage in recorded_stages().items()
        if name in DATA_SECTIONS  # other stages may have run before these
        for key, value in stage.get("params", {}).get(PARAMS_FILE.name, {}).items()
        if key.split(".")[0] in DATA_SECTIONS
    }
    if not recorded:
        now = read_params_file(PARAMS_FILE) if PARAMS_FILE.is_file() else {}
        recorded = {name: now.get(name) for name in DATA_SECTIONS}
    return all(value_at(values, key) == value for key, value in recorded.items())


def make_forecast(params: TrainParams, vocabulary: Manifest, launch: LaunchConfig) -> Forecast:
    """The forecast for a launch on this machine. Raises UserError if the model cannot be built."""
    precision = resolve_precision(params.precision, launch.device_type)
    params = params.model_copy(update={"precision": precision})
    model = model_without_weights(params, vocabulary)
    flops = flops_per_token(model, params.sequence_length, params.head_rows)
    state = state_bytes(params, model.config, launch.device_type)
    sharing = launch.processes // launch.machines if launch.device_type == "cpu" else 1
    return Forecast(
        params,
        launch,
        parameters=model.num_parameters(),
        flops_per_token=flops,
        vocabulary_size=vocabulary.vocab_size,
        corpus_tokens=vocabulary.tokens,
        state={part: size // launch.shards for part, size in state.items()},
        capacity=device_memory(launch.device_type) // sharing,
        tokens_per_second=measured_speed(flops, model.num_parameters(), launch, params.precision),
    )


def state_bytes(params: TrainParams, config: PreTrainedConfig, device_type: str) -> dict[StatePart, int]:
    """Bytes of weights, gradients and optimizer state, from one update with fake tensors.

    Raises UserError if transformers cannot build the model.
    """
    with torch.device(device_type), FakeTensorMode():
        model = without_values(config, device_type)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        optimizers = build_optimizers(model, params.optimizer, params.precision)
        optimizers.step(1.0)
        kept = [value for optimizer in optimizers for value in tree_leaves(list(optimizer.state.values()))]
        return {
            "weights": sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
            "gradients": sum(parameter.nbytes for parameter in trained),
            "optimizer": sum(value.nbytes for value in kept if isinstance(value, Tensor)),
        }


def measured_speed(flops: int, parameters: int, launch: LaunchConfig, precision: Precision) -> float | None:
    """Tokens per second of the last training; None unless it had the same model, devices and precision."""
    here = {"device": device_name(torch.device(launch.device_type)), "processes": launch.processes}
    here |= {"precision": precision, "flops_per_token": flops, "parameters": parameters}
    with suppress(OSError, UserError, ValueError, AttributeError):  # an estimate is not worth a failure
        last = read_json(TRAIN_SPEED)
        if here.items() <= last.items():
            return float(last["tokens_per_second"]) or None
    return None


def device_memory(device_type: str) -> int:
    """Bytes of memory of the first GPU, or of the machine if the device is a CPU."""
    if device_type == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def scaled(value: float, unit: str) -> str:
    """Format with three digits and a prefix: 1.28 GB, 9.25 MFLOP."""
    prefixes = iter(("", "k", "M", "G", "T", "P", "E", "Z", "Y", "R"))
    prefix = next(prefixes)
    while value >= 999.5:
        value, prefix = value / 1000, next(prefixes)
    return f"{value:.3g} {prefix}{unit}"


def duration(seconds: float) -> str:
    """Format seconds: 40 s, 7 min, 3.5 h, 12 days."""
    for size, unit, until in ((1, "s", 90), (60, "min", 5400), (3600, "h", 172800)):
        if seconds < until:
            return f"{seconds / size:.2g} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"


if __name__ == "__main__":
    run_stage(main)
