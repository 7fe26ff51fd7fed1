"""One training process: what it holds of a sharded model, and that its host runs ahead of the device.

Of a model that is sharded only the main process holds values on the host, and all shards are parts of them. Between two
points of the curves the host reads nothing that it would have to wait for: that is counted on the CPU, by the
operations that on a GPU wait for all that was queued.
"""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from stages.formats.tokens import TOKENS, TRAIN, TokenStore
from stages.train import worker
from stages.train.compute import setup
from stages.train.compute.model.build import build_model
from stages.train.compute.parallel import full_weights
from stages.train.compute.step import StepResult, Trainer
from stages.train.loop import HostCopy
from stages.train.params import TrainParams
from stages.train.worker import join
from tests.train.models import MODELS
from tests.train.small_run import monitoring, params, run_workers, write_project


def values_of(model: str) -> TrainParams:
    return TrainParams.model_validate(params(model=MODELS[model], precision="fp32", gradient_checkpointing=True))


def set_up_all() -> None:
    """In each process of a launch."""
    for name in ("gpt2", "llama", "qwen3_moe"):
        with patch.object(setup, "build_model", wraps=build_model) as built:
            trainer = setup.build_trainer(values_of(name), join(monitoring()), TokenStore(TOKENS / TRAIN))
        assert built.call_count == (1 if trainer.accelerator.is_main_process else 0)
        weights = full_weights(trainer.raw_model.model)
        buffers = {key: value.clone() for key, value in trainer.raw_model.model.named_buffers()}
        torch.save(
            (weights, buffers, trainer.raw_model.plain_head, trainer.raw_model.model.config._attn_implementation),
            f"{name}-{os.environ['RANK']}.pt",
        )


def test_the_shards_are_parts_of_what_one_process_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = write_project(tmp_path / "project")
    run_workers(project, 2, set_up_all, ACCELERATE_USE_FSDP="true", PARROTFLOW_MICRO_BATCH="2")
    monkeypatch.chdir(project)
    for name in ("gpt2", "llama", "qwen3_moe"):
        alone = build_model(values_of(name), TokenStore(TOKENS / TRAIN).manifest)
        weights, *of_main = torch.load(f"{name}-0.pt", weights_only=True)
        _, *of_other = torch.load(f"{name}-1.pt", weights_only=True)
        expected = get_model_state_dict(alone)
        assert weights.keys() == expected.keys()
        assert all(value.equal(weights[key]) for key, value in expected.items())
        assert of_main[1:] == of_other[1:] == [of_main[1], alone.config._attn_implementation]
        for buffers in (of_main[0], of_other[0]):
            assert all(value.equal(buffers[key]) for key, value in alone.named_buffers())


WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero"}


class Waits(TorchDispatchMode):
    """The numbers of the steps (from 1) after which something was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0
        self.steps: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in WAITING and self.step:
            self.steps.add(self.step)
        return func(*args, **(kwargs or {}))


def counted_main() -> None:
    """The worker, counting; what it found goes to a file."""
    waits = Waits()
    step, read, train = Trainer.step, HostCopy.read, worker.train

    def counted_step(self: Trainer, *arguments: Any) -> StepResult:
        waits.step += 1
        return step(self, *arguments)

    def read_aside(self: HostCopy) -> float:
        with _disable_current_modes():  # a copy on the host of what an earlier step left
            return read(self)

    def counted_train(*arguments: Any) -> Any:
        with waits:
            return train(*arguments)

    patched = ((Trainer, "step", counted_step), (HostCopy, "read", read_aside), (worker, "train", counted_train))
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in patched:
            patch.setattr(owner, name, value)
        try:
            worker.main()
        finally:
            Path("waits.json").write_text(json.dumps(sorted(waits.steps)), encoding="utf-8")


def test_the_host_waits_at_most_once_in_log_every_steps(tmp_path: Path) -> None:
    every = {"log_every_steps": 4, "evaluate_every_steps": 12, "checkpoint_every_steps": 12}
    project = write_project(tmp_path / "project", model=MODELS["llama"], max_steps=12, **every)
    run_workers(project, 1, counted_main, PARROTFLOW_MICRO_BATCH="2")
    assert json.loads((project / "waits.json").read_text(encoding="utf-8")) == [4, 8, 12]


def test_a_copy_keeps_the_value_of_its_time() -> None:
    votes = torch.ones(())
    copy = HostCopy(votes)
    votes.zero_()
    assert copy.read() == 1
