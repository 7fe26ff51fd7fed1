"""Steps far above those before them are found, recorded and, where asked for, skipped: always the same ones.

What makes a spike here is real: documents of another kind in the batch, and a low threshold.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json
from stages.formats.revision.execution import TRAIN_EXECUTION, Spike
from stages.runtime.entry import UserError
from stages.runtime.section import check_section
from stages.train.params import Spikes, TrainParams
from stages.train.spikes import SpikeMonitor
from tests.train.small_run import copy_of, params, run_workers, write_params, write_project

FOUND: dict[str, Any] = {"spikes__deviations": 1.0, "spikes__window_steps": 4, "max_steps": 20}
SKIPPED = FOUND | {"spikes__skip": True, "deterministic_micro_batch_size": 2}


class Waits(Tensor):
    """A tensor that counts how often the host reads values."""

    count = 0

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.count += function in (Tensor.tolist, Tensor.item)
        return super().__torch_function__(function, types, args, kwargs)


def monitor(**changes: Any) -> SpikeMonitor:
    values = {"deviations": 5.0, "window_steps": 5, "skip": False} | changes
    return SpikeMonitor(Spikes.model_validate(values), Accelerator(cpu=True))


def watch(watching: SpikeMonitor, losses: list[float], first: int = 0) -> list[bool]:
    """Whether each of some steps is skipped."""
    return [
        watching.skips(step, torch.tensor(loss).as_subclass(Waits), torch.tensor(1.0 + 0.01 * (step % 3)))
        for step, loss in enumerate(losses, first)
    ]


LOSSES = [3.0, 3.1, 2.9, 3.0, 3.2, 9.0, 3.0]


def test_a_value_beyond_the_median_by_so_many_robust_deviations_is_a_spike() -> None:
    watching = monitor()
    assert watch(watching, LOSSES) == [False] * 7
    (spike,) = watching.found()
    assert (spike.step, spike.signal, spike.value, spike.skipped) == (6, "loss", 9.0, False)
    assert spike.median == pytest.approx(3.0)
    assert spike.deviations == pytest.approx(6.0 / (1.4826 * 0.1), abs=0.01)
    assert watching.found() == []


def test_a_new_level_is_the_normal_one_after_half_a_window_and_what_is_no_number_never() -> None:
    skipped = watch(monitor(skip=True), [*LOSSES[:5], 9.0, 9.1, 9.0, 9.2, float("inf"), 9.1])
    assert skipped == [False] * 5 + [True] * 3 + [False] * 3


def test_the_host_waits_for_the_device_never_once_at_the_end_or_in_every_step() -> None:
    for changes, waits in (({"deviations": None}, 0), ({}, 1), ({"skip": True}, 7)):
        Waits.count = 0
        watching = monitor(**changes)
        watch(watching, LOSSES)
        watching.found()
        assert Waits.count == waits


def test_a_monitor_that_is_restored_decides_as_one_that_was_never_stopped() -> None:
    whole, first, second = (monitor(skip=True, window_steps=4) for _ in range(3))
    losses = torch.rand(40, generator=torch.Generator().manual_seed(0)).exp().exp().tolist()
    watch(first, losses[:20])
    second.restore(first.recent)
    assert watch(whole, losses)[20:] == watch(second, losses[20:], first=20)
    assert 0 < len(whole.found()) < 20


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that could run."""
    return write_project(tmp_path_factory.mktemp("inputs"))


def recorded(project: Path) -> list[Spike]:
    """The spikes in the record of a run's execution."""
    return [Spike.model_validate(spike) for spike in read_json(project / TRAIN_EXECUTION)["spikes"]]


def test_to_look_for_spikes_changes_no_bit_and_continues_the_same_run(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = copy_of(inputs, tmp_path / "project")
    write_params(project, max_steps=20)
    run_workers(project, 1)
    plain = weights_sha256(project / "model")
    write_params(project, **FOUND, log_every_steps=5, evaluate_every_steps=20)
    capfd.readouterr()
    run_workers(project, 1)
    assert "continuing at step 20" in capfd.readouterr().out

    other = copy_of(inputs, tmp_path / "other")
    write_params(other, **FOUND, log_every_steps=5, evaluate_every_steps=20)
    run_workers(other, 1)
    said = capfd.readouterr().out
    assert weights_sha256(other / "model") == plain
    assert recorded(other)
    for spike in recorded(other):
        assert not spike.skipped
        assert re.search(rf"^spike at step {spike.step}: the .* its batch holds s:f\d+\.py, ", said, re.MULTILINE)


def test_the_same_steps_are_skipped_on_1_2_and_4_processes_and_after_a_stop(inputs: Path, tmp_path: Path) -> None:
    project = copy_of(inputs, tmp_path / "1")
    write_params(project, **SKIPPED)
    run_workers(project, 1)
    spikes = recorded(project)
    assert 0 < len(spikes) < 10
    assert all(spike.skipped for spike in spikes)
    for processes in (2, 4):
        other = copy_of(inputs, tmp_path / str(processes))
        write_params(other, **SKIPPED)
        run_workers(other, processes)
        assert recorded(other) == spikes
        assert weights_sha256(other / "model") == weights_sha256(project / "model")

    kept = SKIPPED | {"schedule__name": "constant"}
    stopped, whole = (copy_of(inputs, tmp_path / name) for name in ("stopped", "whole"))
    write_params(whole, **kept)
    run_workers(whole, 1)
    for steps in (7, 13, 20):
        write_params(stopped, **kept | {"max_steps": steps})
        run_workers(stopped, 2)
    assert recorded(stopped) == recorded(whole)
    assert weights_sha256(stopped / "model") == weights_sha256(whole / "model")


def test_nothing_can_be_skipped_where_nothing_is_looked_for() -> None:
    with pytest.raises(UserError, match=r"train\.spikes\.skip = True: no spikes are looked for; set train\."):
        check_section("train", params(spikes__skip=True), TrainParams)
