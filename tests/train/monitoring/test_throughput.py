"""How much of a run's time was useful, over all its sessions; and what a GPU can do at most."""

import resource
import time
from pathlib import Path

import pytest
import torch

from stages.formats.reports import read_json
from stages.train import worker
from stages.train.checkpoint.manifest import TrainingProgress
from stages.train.loop import StopSignal
from stages.train.monitoring.throughput import Throughput, Uptime, peak_flops
from stages.train.optim.settings import Precision
from stages.train.params import TrainParams
from tests.train.small_run import params, run_workers, write_project


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H100 NVL", "bf16", 835e12),
        ("NVIDIA H100 80GB HBM3", "fp32", 67e12),
        ("Tesla V100-SXM2-16GB", "fp32", 15.7e12),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA T1000", "fp32", None),
        ("NVIDIA H200", "bf16", 989e12),
        ("NVIDIA H200 NVL", "bf16", 835e12),
        ("NVIDIA GH200 480GB", "bf16", 989e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA RTX A1000 Laptop GPU", "bf16", None),  # no A100
        ("NVIDIA RTX A1000", "fp32", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16", None),  # a seventh of one
        ("NVIDIA GeForce RTX 4090", "fp32", 82.6e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "fp32", None),
        ("NVIDIA GeForce RTX 4090 D", "fp32", None),
        ("Tesla V100-PCIE-16GB", "fp32", 14e12),
    ],
)
def test_the_peak_is_of_the_kind_and_the_precision(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: Precision, peak: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda"), precision) == peak
    assert peak_flops(torch.device("cpu"), precision) is None


def progress(step: int, **carried: object) -> TrainingProgress:
    given = TrainingProgress.of(TrainParams.model_validate(params()), step, 1.0)
    return given.model_copy(update=carried)


def test_what_lasts_is_useful_and_all_else_since_the_first_start_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0)
    died = Uptime.of(progress(0), tmp_path, now - 100, 12)
    died.write()  # and never saved anything
    saved = Uptime.of(progress(0), tmp_path, now - 80, 12)
    saved.write()
    last = Uptime.of(progress(6, starts=saved.starts, useful_seconds=30.0), tmp_path, now - 40, 12)

    throughput = Throughput(1, None, began=100.0 - 35)
    throughput.aside_seconds["checkpoint"] = 5.0
    measured = last.metrics(throughput)
    assert measured["interruptions"] == 2
    assert measured["total_seconds"] == pytest.approx(100)
    assert measured["lost_seconds"] == pytest.approx(100 - 30 - 30)
    assert measured["effective_training_time_ratio"] == pytest.approx(0.6)


def test_a_start_that_a_full_disk_does_not_take_leaves_those_before(tmp_path: Path) -> None:
    now = time.time()
    Uptime.of(progress(0), tmp_path, now - 100, 12).write()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        Uptime.of(progress(0), tmp_path, now - 50, 12).write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert Uptime.of(progress(0), tmp_path, now, 12).starts == [now - 100, now]


@pytest.mark.parametrize("step", [12, 9, 0])
def test_a_complete_run_that_is_made_longer_did_not_wait(tmp_path: Path, step: int) -> None:
    """Wherever it continues: at the last step, before the rates decayed, or afresh."""
    now = time.time()
    Uptime.of(progress(0), tmp_path, now - 5000, 12).write()
    (tmp_path / "step-00000012").mkdir()
    done = progress(step, starts=[now - 5000], useful_seconds=30.0) if step else progress(0, max_steps=20)
    longer = Uptime.of(done, tmp_path, now - 10, 20)
    assert (longer.starts, longer.useful_before) == ([now - 10], 0.0)

    longer.write()  # and dies before it has saved anything
    assert Uptime.of(done, tmp_path, now, 20).starts == [now - 10, now]


def test_a_run_that_is_made_longer_before_it_was_complete_goes_on_being_measured(tmp_path: Path) -> None:
    now = time.time()
    longer = Uptime.of(progress(6, starts=[now - 100], useful_seconds=30.0), tmp_path, now, 20)
    assert (longer.starts, longer.useful_before) == ([now - 100, now], 30.0)


def main_that_is_asked_to_stop() -> None:
    """The worker, which gets a SIGTERM before its first step."""
    StopSignal.is_set = property(lambda self: True)  # type: ignore[assignment]
    worker.main()


def test_sessions_of_a_run_add_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    project = write_project(tmp_path / "project", max_steps=6)
    run_workers(project, 1, main_that_is_asked_to_stop, expected_code=75)
    run_workers(project, 1)
    speed = read_json(project / "reports/train_speed.json")
    assert speed["interruptions"] == 1
    useful = speed["total_seconds"] - speed["lost_seconds"]
    assert 0 < useful < speed["total_seconds"]
    assert speed["effective_training_time_ratio"] == pytest.approx(useful / speed["total_seconds"], abs=1e-3)
    said = f"useful time (ETTR): {speed['effective_training_time_ratio']:.1%} of 0:00:"
    assert any(
        line.startswith(said) and line.endswith(", with 1 interruption") for line in capfd.readouterr().out.split("\n")
    )
