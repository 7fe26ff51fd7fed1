"""How many operations a second this machine does in a model's training steps: some of them, run and timed."""

import time
from dataclasses import dataclass
from statistics import median

import torch
from transformers import AutoModelForCausalLM

from stages.formats.tokens import Manifest
from stages.runtime.entry import UserError
from stages.runtime.launch import LaunchConfig
from stages.train.forecast import make_forecast
from stages.train.model.attention import use_unmasked
from stages.train.model.build import model_without_weights
from stages.train.model.loss import CausalLoss
from stages.train.monitoring.throughput import device_name
from stages.train.optim.optimizers import build_optimizers
from stages.train.params import TrainParams

SECONDS = 2.0
"""That steps are timed for, after one that is not."""


@dataclass(frozen=True)
class Timed:
    """A speed, and where it comes from."""

    flops_per_second: float
    source: str


def timed(params: TrainParams, vocabulary: Manifest, config: LaunchConfig) -> Timed:
    """Steps on this CPU in one process are timed; else the forecast's speed is taken.

    A GPU compiles first, and processes wait for each other: a few steps here would say little of a run.
    Raises UserError where there is nothing to go by.
    """
    forecast = make_forecast(params, vocabulary, config)
    if config.device_type == "cpu" and config.processes == 1:
        seconds, steps = step_seconds(forecast.params, vocabulary, forecast.process.micro_batch_size)
        flops = forecast.flops_per_token * params.global_batch_size * params.sequence_length
        name = device_name(torch.device("cpu"))
        return Timed(flops / seconds, f"measured now in {steps} steps of this model on {name}")
    rate = forecast.speed.tokens_per_second
    if rate is None:
        raise UserError(f"compute: {forecast.speed.source}, so a time has no meaning; give TFLOP, such as compute=20")
    return Timed(rate * forecast.flops_per_token, forecast.speed.source)


def step_seconds(params: TrainParams, vocabulary: Manifest, micro_batch_size: int) -> tuple[float, int]:
    """The median of training steps on random tokens, and how many there were."""
    model = AutoModelForCausalLM.from_config(model_without_weights(params, vocabulary).config, dtype=torch.float32)
    if params.attention == "causal":
        use_unmasked(model, params.sequence_length)
    loss = CausalLoss(model.train(), params)
    optimizers = build_optimizers(model, params.optimizer, params.precision)
    shape = (params.global_batch_size, params.sequence_length)
    ids = torch.randint(vocabulary.vocab_size, shape)

    def step() -> float:
        began = time.perf_counter()
        for rows in torch.split(ids, micro_batch_size):
            torch.autograd.backward(loss(rows, rows, torch.arange(shape[1]).expand_as(rows)).sum() / ids.numel())
        torch.nn.utils.clip_grad_norm_(model.parameters(), params.max_gradient_norm)
        optimizers.step(1.0)
        for parameter in model.parameters():
            parameter.grad = None
        return time.perf_counter() - began

    step()
    times = [step()]
    while sum(times) < SECONDS:
        times.append(step())
    return median(times), len(times)
