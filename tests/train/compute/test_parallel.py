"""Sharding, replicas, compilation, bf16, checkpointing and accumulation together give what one process gives.

All that run on so many processes are trained in one launch. What is compiled is captured and differentiated as always;
only the last step, to machine code, is left out.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from stages.formats.tokens import TOKENS, TRAIN, TokenStore
from stages.train.compute import setup
from stages.train.compute.fsdp import blocks
from stages.train.compute.model.build import build_model
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.parallel import full_weights
from stages.train.compute.processes import PROCESS_GROUP
from stages.train.params import TrainParams
from stages.train.worker import join
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import EPSILON, monitoring, params, require_equal_to_rounding, run_workers, write_project

STEPS = 3

BF16_ROUNDING = 0.01
"""Nats per token: between layers activations are bf16 where the model is sharded, and fp32 where it is not."""


@dataclass(frozen=True)
class Run:
    """How a model is trained."""

    model: str
    processes: int
    sharded: bool = True
    replicas: int = 1
    compiled: bool = False
    micro_batch: int = 2
    """Sequences; a process's share is 8 / processes."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the `train` section."""

    @property
    def name(self) -> str:
        """Also of its file."""
        kind = ("hsdp" if self.replicas > 1 else "fsdp2") if self.sharded else "ddp"
        parts = [self.model, f"{self.processes}_{kind}", "compiled" if self.compiled else "eager"]
        changes = (key if isinstance(of, dict) else f"{key}={of}" for key, of in self.changes.items())
        return "-".join([*parts, *changes])

    @property
    def values(self) -> TrainParams:
        """The section: fp32 unless the changes say otherwise."""
        fixed = {"global_batch_size": 8, "max_steps": STEPS, "precision": "fp32", "optimizer__epsilon": EPSILON}
        changes = fixed | self.changes
        return TrainParams.model_validate(params(model=MODELS[self.model], schedule__warmup_steps=1, **changes))


CHECKPOINTED = {"gradient_checkpointing": True}
BF16 = {"precision": "bf16"}
DOCUMENT = {"attention": "document"}
MIXTURE = {
    "mixture": {"weights": {"web": 3, "books": 1}, "phases": []},
}

RUNS = [
    Run("llama", 2, sharded=False, compiled=True, changes=CHECKPOINTED),
    Run("qwen3", 2, sharded=False, compiled=True, changes=BF16),
    Run("llama", 2, sharded=False, compiled=True, changes=DOCUMENT),
    Run("llama", 2, compiled=True, changes=CHECKPOINTED | DOCUMENT),
    Run("llama", 2, compiled=True, changes=CHECKPOINTED),
    Run("qwen3", 2, compiled=True, changes=BF16),
    Run("llama", 2, changes=MIXTURE),
    Run("mixtral", 2, changes=CHECKPOINTED),
    Run("llama", 4, replicas=2, compiled=True, micro_batch=1),
    Run("qwen3_moe", 4, replicas=2, micro_batch=1),
    Run("qwen3", 4, replicas=2, compiled=True, micro_batch=1, changes=BF16),
]


def train_all(runs: list[Run]) -> None:
    """In each process of a launch; what the main one saves is (losses, weights)."""
    for run in runs:
        os.environ["ACCELERATE_USE_FSDP"] = str(run.sharded and run.processes > 1).lower()
        os.environ["PARALLELISM_CONFIG_DP_REPLICATE_SIZE"] = str(run.replicas)
        os.environ["PARROTFLOW_MICRO_BATCH"] = str(run.micro_batch)
        torch.compile = without_code
        torch._dynamo.reset()
        counters.clear()
        with patch.object(setup, "should_compile", return_value=run.compiled):
            trainer = setup.build_trainer(run.values, join(monitoring()), TokenStore(TOKENS / TRAIN))
        if run.processes > 1:
            assert timeouts() == {PROCESS_GROUP.timeout}
        if isinstance(trainer.raw_model, FSDPModule):
            gathered = gathered_dtypes(trainer.raw_model)
        batches = list(trainer.micro_batches(range(STEPS)))
        assert len(batches) == STEPS * 8 // run.processes // run.micro_batch
        losses = []
        for step in range(STEPS):
            result = trainer.step(step, [batch for batch in batches if batch.step == step])
            losses.append(result.loss.item())
        if isinstance(trainer.raw_model, FSDPModule):
            assert all(isinstance(parameter, DTensor) for parameter in trainer.raw_model.parameters())
            assert gathered == {trainer.raw_model.dtype}
            if run.compiled:  # layers alike share their code, in training and under recomputation
                # Rows of one document each need no mask between documents.
                most = 2 if trainer.raw_model.by_document else 1
                assert 1 <= counters["stats"]["unique_graphs"] <= most, counters
                assert not counters["graph_break"]
        weights = full_weights(trainer.raw_model)
        if trainer.accelerator.is_main_process:
            torch.save((losses, weights), f"{run.name}.pt")


def timeouts() -> set[timedelta]:
    """Of all process groups: the main process may be away for long."""
    groups = torch.distributed.distributed_c10d._world.pg_map
    return {group._get_backend(torch.device("cpu")).options._timeout for group in groups}


COMPILE: Callable[..., Any] = torch.compile


def without_code(model: Any, dynamic: bool, options: dict[str, Any]) -> Any:
    """As the trainer asks for it, less the options of the machine code."""
    return COMPILE(model, dynamic=dynamic, backend="aot_eager")


def gathered_dtypes(model: nn.Module) -> set[torch.dtype]:
    """Filled with those in which layers have their weights during a pass."""
    found: set[torch.dtype] = set()

    def look(block: nn.Module, *_: Any) -> None:
        found.update(parameter.dtype for parameter in block.parameters())

    for block in blocks(model):
        block.register_forward_hook(look, prepend=True)
    return found


Trained = Callable[[Run], tuple[list[float], dict[str, Tensor]]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """What a run gave."""
    project = write_project(tmp_path_factory.mktemp("combinations"), source_of)
    alone = {alone_of(run).name: alone_of(run) for run in RUNS}
    for processes, runs in ((1, list(alone.values())), *((n, [r for r in RUNS if r.processes == n]) for n in (2, 4))):
        run_workers(project, processes, partial(train_all, runs))
    return lambda run: torch.load(project / f"{run.name}.pt")


def source_of(number: int) -> str:
    """A document's."""
    return "books" if number % 3 == 0 else "web"


def alone_of(run: Run) -> Run:
    """The same in one process, neither compiled nor checkpointed."""
    computed = {key: value for key, value in run.changes.items() if key in ("precision", "attention", "mixture")}
    return Run(run.model, 1, sharded=False, changes=computed)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_run_is_that_of_one_process(run: Run, trained: Trained) -> None:
    losses, weights = trained(run)
    expected_losses, expected = trained(alone_of(run))
    assert losses[-1] < losses[0]
    if run.values.precision == "bf16":
        assert losses == pytest.approx(expected_losses, abs=BF16_ROUNDING)
        return
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    require_equal_to_rounding(weights, expected, run.values)


@pytest.mark.parametrize("name", MODELS)
def test_a_block_is_a_layer_whatever_lists_a_layer_holds(name: str) -> None:
    values = TrainParams.model_validate(params(model=MODELS[name]))
    model = CausalLoss(build_model(values, vocabulary()), values)
    found = list(blocks(model))
    assert len(found) == model.model.config.num_hidden_layers
    assert all("Layer" in type(block).__name__ or "Block" in type(block).__name__ for block in found)
