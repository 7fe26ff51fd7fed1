"""What is said of a run before it starts, and which runs are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stages.runtime.entry import UserError
from stages.runtime.launch.config import LaunchConfig
from stages.train.distributed.micro_batch import MICRO_BATCH
from stages.train.forecast import capacity, forecast, speed
from stages.train.forecast.forecast import Forecast, duration, make_forecast, scaled
from stages.train.forecast.speed import expected_speed
from stages.train.monitoring.throughput import device_name
from stages.train.params import TrainParams
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import params

ALONE = LaunchConfig(Path("launch/cpu.yaml"), processes=1, machines=1, on_cpu=True, sharded=False)


def made(launch: LaunchConfig = ALONE, **changes: object) -> Forecast:
    given = {"model": MODELS["llama"], "precision": "fp32", "global_batch_size": 8, "max_steps": 20} | changes
    return make_forecast(TrainParams.model_validate(params(**given)), vocabulary(), launch)


def write_speed(folder: Path, **changes: object) -> Path:
    file = folder / "train_speed.json"
    values = {"device": device_name(torch.device("cpu")), "processes": 1, "precision": "fp32", "seconds": 3.0}
    file.write_text(json.dumps(values | {"flops_per_token": 1000, "tokens_per_second": 50.0} | changes))
    return file


def test_the_lines_say_model_operations_time_and_memory_by_part() -> None:
    found = made()

    model, time, memory = found.lines
    assert f"{found.parameters:,} parameters" in model
    assert f"{found.tokens:,} tokens in 20 steps" in model
    assert found.tokens == 20 * 8 * found.params.sequence_length
    assert time.startswith("time: ")
    assert all(f"{part} " in memory for part in ("weights", "gradients", "optimizer", "activations", "loss"))
    assert "micro-batches of 8 sequences, fp32" in memory


def test_the_batch_that_grows_counts_with_its_size() -> None:
    assert made(batch_doublings=[10]).tokens == 1.5 * made().tokens


def test_a_process_takes_its_share_of_the_batch_and_of_the_machine() -> None:
    one, two = made(), made(replace(ALONE, processes=2))

    assert two.process.micro_batch_size == one.process.micro_batch_size / 2
    assert one.capacity is not None
    assert two.capacity == one.capacity // 2


def test_the_micro_batch_is_the_one_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MICRO_BATCH, "2")

    assert (made().process.micro_batch_size, made().process.micro_batches) == (2, 4)
    assert made(deterministic_micro_batch_size=4).process.micro_batch_size == 4


def test_a_sharded_model_is_cut_up_over_the_processes_of_a_replica() -> None:
    sharded = replace(ALONE, processes=4, sharded=True)

    assert made(sharded).process.shards == 4
    assert made(replace(sharded, replicas=2)).process.shards == 2
    assert "sharded over 4" in made(sharded).lines[2]


def test_a_run_that_cannot_fit_is_refused_with_the_numbers_and_what_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "device_memory", lambda _: 10_000)

    with pytest.raises(UserError) as refused:
        made().check_fits()

    message = str(refused.value)
    assert "each process needs about " in message
    assert "can have 10 kB" in message
    for remedy in (f"{MICRO_BATCH} below 8", "train.gradient_checkpointing: true", "fsdp2", "a smaller model"):
        assert remedy in message


def test_what_may_just_fit_or_whose_room_is_unknown_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = made().memory.total
    monkeypatch.setattr(forecast, "device_memory", lambda _: int(0.95 * needed))
    made().check_fits()

    monkeypatch.setattr(forecast, "device_memory", lambda _: None)
    made().check_fits()
    assert "the memory of the device is not known" in made().lines[2]


def test_the_speed_is_that_of_the_last_run_of_this_model_here(tmp_path: Path) -> None:
    found = expected_speed(1000, "cpu", 1, "fp32", write_speed(tmp_path))

    assert found.tokens_per_second == 50.0
    assert "measured for this model" in found.source
    assert "train_speed.json" in found.source


def test_another_models_run_here_tells_the_operations_per_second(tmp_path: Path) -> None:
    found = expected_speed(2000, "cpu", 1, "fp32", write_speed(tmp_path))

    assert found.tokens_per_second == 25.0
    assert "another model" in found.source


@pytest.mark.parametrize("other", [{"device": "another processor"}, {"processes": 2}, {"precision": "bf16"}])
def test_a_run_on_other_hardware_tells_nothing(tmp_path: Path, other: dict[str, object]) -> None:
    found = expected_speed(1000, "cpu", 1, "fp32", write_speed(tmp_path, **other))

    assert found.tokens_per_second is None
    assert "no run was measured" in found.source


def test_without_a_run_the_peak_of_the_hardware_counts_at_a_stated_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "peak_flops", lambda *_: 1e12)

    found = expected_speed(1000, "cpu", 2, "bf16", tmp_path / "none.json")

    assert found.tokens_per_second == pytest.approx(0.3 * 2 * 1e12 / 1000)
    assert "30% of the peak of 2" in found.source


@pytest.mark.parametrize("text", ["", "{", "[]", '{"device": 3}'])
def test_a_damaged_report_of_speed_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "speed.json").write_text(text)

    assert speed.last_speed(tmp_path / "speed.json") is None


def test_the_memory_of_a_machine_is_the_least_limit_of_its_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job/task").mkdir(parents=True)
    (tmp_path / "job/task/memory.max").write_text("max\n")
    (tmp_path / "job/memory.max").write_text("1000000\n")
    (tmp_path / "own").write_text("0::/job/task\n")
    monkeypatch.setattr(capacity, "CGROUPS", tmp_path)
    monkeypatch.setattr(capacity, "OWN_CGROUP", tmp_path / "own")

    assert capacity.machine_memory() == 1_000_000

    (tmp_path / "memory/job").mkdir(parents=True)
    (tmp_path / "memory/job/memory.limit_in_bytes").write_text("2000000\n")
    (tmp_path / "own").write_text("4:cpu,memory:/job\n")
    assert capacity.machine_memory() == 2_000_000


def test_quantities_are_written_with_a_prefix_and_times_in_the_unit_that_suits_them() -> None:
    assert [scaled(value, "B") for value in (0, 999, 1_230, 9.25e6, 1.5e12)] == [
        *("0 B", "999 B", "1.23 kB", "9.25 MB", "1.5 TB")
    ]
    assert [duration(seconds) for seconds in (40, 432, 7_200, 1e6)] == ["40 s", "7 min", "2 h", "12 days"]
