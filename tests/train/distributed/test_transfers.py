"""The host runs ahead of the device: between two points of the curves it reads nothing that it would have to wait for.

Counted on the CPU, by the operations that on a GPU wait for all that was queued.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from stages.train import loop, worker
from stages.train.distributed.transfers import HostCopy
from tests.train.models import MODELS
from tests.train.small_run import run_workers, write_project

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
    step, read, train = loop.Trainer.step, HostCopy.read, worker.train

    def counted_step(self: loop.Trainer, *arguments: Any) -> loop.StepResult:
        waits.step += 1
        return step(self, *arguments)

    def read_aside(self: HostCopy) -> float:
        with _disable_current_modes():  # a copy on the host of what an earlier step left
            return read(self)

    def counted_train(*arguments: Any) -> Any:
        with waits:
            return train(*arguments)

    patched = ((loop.Trainer, "step", counted_step), (HostCopy, "read", read_aside), (worker, "train", counted_train))
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in patched:
            patch.setattr(owner, name, value)
        try:
            worker.main()
        finally:
            Path("waits.json").write_text(json.dumps(sorted(waits.steps)), encoding="utf-8")


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_the_host_waits_at_most_once_in_log_every_steps(tmp_path: Path, model: str) -> None:
    every = {"log_every_steps": 4, "evaluate_every_steps": 12, "checkpoint_every_steps": 12}
    project = write_project(tmp_path / "project", model=MODELS[model], max_steps=12, **every)
    run_workers(project, 1, partial(counted_main), PARROTFLOW_MICRO_BATCH="2")
    assert json.loads((project / "waits.json").read_text(encoding="utf-8")) == [4, 8, 12]


def test_a_copy_keeps_the_value_of_its_time() -> None:
    votes = torch.ones(())
    copy = HostCopy(votes)
    votes.zero_()
    assert copy.read() == 1
