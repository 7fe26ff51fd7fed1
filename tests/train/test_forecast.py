"""What is said of a run before it starts, and which runs are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stages.runtime.entry import UserError
from stages.runtime.launch import LaunchConfig
from stages.train import forecast
from stages.train.forecast import Forecast, duration, expected_speed, make_forecast, scaled
from stages.train.hardware import MICRO_BATCH
from stages.train.memory import Process, memory_of_step
from stages.train.model.build import model_without_weights
from stages.train.monitoring.throughput import SPEEDS, device_name, measured_speeds, remember_speed
from stages.train.params import TrainParams
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import params

STEP_TOKENS = 10**8
"""A batch so large that the host's time to queue a step is negligible."""

ALONE = LaunchConfig(Path("launch/cpu.yaml"), processes=1, machines=1, on_cpu=True, sharded=False)


def made(launch: LaunchConfig = ALONE, **changes: object) -> Forecast:
    given = {"model": MODELS["llama"], "precision": "fp32", "global_batch_size": 8, "max_steps": 20} | changes
    return make_forecast(TrainParams.model_validate(params(**given)), vocabulary(), launch)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which nothing was measured."""
    (tmp_path / "reports").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def facts(**changes: object) -> dict[str, object]:
    """Of a run that ended."""
    values = {"device": device_name(torch.device("cpu")), "processes": 1, "precision": "fp32", "seconds": 3.0}
    return values | {"flops_per_token": 1000, "tokens_per_second": 50.0} | changes


def test_the_lines_say_model_operations_time_and_memory_by_part() -> None:
    found = made()

    model, time, memory = found.lines
    assert f"{found.parameters:,} parameters" in model
    assert f"{found.tokens:,} tokens in 20 steps" in model
    assert found.tokens == 20 * 8 * found.params.sequence_length
    assert time.startswith("time: ")
    assert all(f"{part} " in memory for part in ("weights", "gradients", "optimizer", "activations", "loss"))
    assert "micro-batches of 8 sequences, fp32" in memory


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
    needed = made().memory.total
    monkeypatch.setattr(forecast, "device_memory", lambda _: int(0.85 * needed))

    with pytest.raises(UserError) as refused:
        made().check_fits()

    message = str(refused.value)
    assert "each process needs about " in message
    assert f"can have {scaled(int(0.85 * needed), 'B')}" in message
    for remedy in (f"{MICRO_BATCH} below 8", "train.gradient_checkpointing: true", "fsdp2", "a smaller model"):
        assert remedy in message


def test_a_micro_batch_that_is_searched_for_refuses_only_what_does_not_fit_as_a_single_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forecast, "given_micro_batch_size", lambda *_: None)  # as on a GPU
    monkeypatch.setattr(forecast, "device_memory", lambda _: 10**12)
    roomy = made()
    assert roomy.process.micro_batch_size == 8
    one = memory_of_step(roomy.params, model_without_weights(roomy.params, vocabulary()).config, Process("cpu", 1, 8))

    monkeypatch.setattr(forecast, "device_memory", lambda _: int(0.91 * one.total))
    found = made()
    assert found.process.micro_batch_size == 1
    found.check_fits()

    monkeypatch.setattr(forecast, "device_memory", lambda _: int(0.89 * one.total))
    with pytest.raises(UserError) as refused:
        made().check_fits()
    assert MICRO_BATCH not in str(refused.value)


def test_a_state_that_alone_is_too_much_is_not_helped_by_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    state = sum(made().memory.parts[part] for part in ("weights", "gradients", "optimizer"))
    monkeypatch.setattr(forecast, "device_memory", lambda _: int(0.8 * state))

    with pytest.raises(UserError) as refused:
        made().check_fits()

    assert "train.gradient_checkpointing" not in str(refused.value)
    assert "fsdp2) or choose a smaller model (" in str(refused.value)


def test_what_may_just_fit_or_whose_room_is_unknown_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = made().memory.total
    monkeypatch.setattr(forecast, "device_memory", lambda _: int(0.95 * needed))
    made().check_fits()

    monkeypatch.setattr(forecast, "device_memory", lambda _: None)
    made().check_fits()
    assert "the memory of the device is not known" in made().lines[2]


def test_the_speed_is_that_of_the_last_run_of_this_model_here(here: Path) -> None:
    remember_speed(facts(tokens_per_second=20.0))
    remember_speed(facts())
    remember_speed(facts(flops_per_token=3000))
    found = expected_speed(1000, "cpu", 1, "fp32", STEP_TOKENS)

    assert found.tokens_per_second == 50.0
    assert found.is_measured
    assert found.source.startswith("measured for this model on ")
    assert len(list(measured_speeds())) == 2


def test_the_last_report_counts_where_this_machine_remembers_nothing(here: Path) -> None:
    (here / "reports/train_speed.json").write_text(json.dumps(facts()))
    assert expected_speed(1000, "cpu", 1, "fp32", STEP_TOKENS).tokens_per_second == 50.0


def test_of_other_models_the_nearest_in_size_tells_the_operations_per_second(here: Path) -> None:
    remember_speed(facts())
    alone = expected_speed(2000, "cpu", 1, "fp32", STEP_TOKENS)
    assert (alone.tokens_per_second, alone.is_measured) == (25.0, False)
    assert "5e+04 FLOP/s on " in alone.source
    assert alone.source.endswith("of a model with 0.5 times the FLOPs per token")

    remember_speed(facts(flops_per_token=100_000, tokens_per_second=2.0))
    nearest = expected_speed(20_000, "cpu", 1, "fp32", STEP_TOKENS)
    assert nearest.tokens_per_second == 10.0
    assert nearest.source.endswith("of a model with 5 times the FLOPs per token, the nearest of 2 that were measured")


def test_what_is_not_measured_of_this_model_is_said_in_round_numbers(here: Path) -> None:
    of_this_model = facts(flops_per_token=made().flops_per_token, tokens_per_second=12_345.0)
    remember_speed(of_this_model | {"flops_per_token": 1.001 * made().flops_per_token})
    assert " at about 12,000 tokens/s, estimated from " in made().lines[1]

    remember_speed(of_this_model)
    assert " at 12,345 tokens/s, measured for this model" in made().lines[1]


@pytest.mark.parametrize("other", [{"device": "another processor"}, {"processes": 2}, {"precision": "bf16"}])
def test_a_run_on_other_hardware_tells_nothing(here: Path, other: dict[str, object]) -> None:
    remember_speed(facts(**other))
    found = expected_speed(1000, "cpu", 1, "fp32", STEP_TOKENS)

    assert found.tokens_per_second is None
    assert "no run was measured" in found.source


def test_without_a_run_the_peak_of_the_hardware_counts_at_a_stated_share(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "peak_flops", lambda *_: 1e12)

    found = expected_speed(1000, "cpu", 2, "bf16", STEP_TOKENS)

    assert found.tokens_per_second == pytest.approx(0.3 * 2 * 1e12 / 1000)
    assert "30% of the peak of 2" in found.source


def test_a_step_of_a_small_model_takes_the_time_in_which_the_host_queues_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "peak_flops", lambda *_: 1e15)

    found = expected_speed(1000, "cpu", 1, "bf16", step_tokens=3_000)

    assert found.tokens_per_second == pytest.approx(100_000)
    assert "0.03 s a step" in found.source


@pytest.mark.parametrize(("times", "is_from_it"), [(10, True), (11, False), (0.1, True), (0.09, False)])
def test_the_speed_of_another_model_counts_on_a_gpu_only_if_it_is_of_about_the_same_size(
    here: Path, monkeypatch: pytest.MonkeyPatch, times: float, is_from_it: bool
) -> None:
    monkeypatch.setattr(forecast, "peak_flops", lambda *_: 1e12)
    remember_speed(facts(flops_per_token=1000 * times))

    found = expected_speed(1000, "cpu", 1, "fp32", STEP_TOKENS)

    assert ("estimated from" in found.source) is is_from_it


@pytest.mark.parametrize("text", ["", "{", "[]", '{"device": 3}'])
def test_a_damaged_report_of_speed_is_none_and_is_replaced(here: Path, text: str) -> None:
    for file in (here / "reports/train_speed.json", here / SPEEDS):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert not list(measured_speeds())

    remember_speed(facts())
    assert expected_speed(1000, "cpu", 1, "fp32", STEP_TOKENS).is_measured


def test_the_memory_of_a_machine_is_the_least_limit_of_its_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job/task").mkdir(parents=True)
    (tmp_path / "job/task/memory.max").write_text("max\n")
    (tmp_path / "job/memory.max").write_text("1000000\n")
    (tmp_path / "own").write_text("0::/job/task\n")
    monkeypatch.setattr(forecast, "CGROUPS", tmp_path)
    monkeypatch.setattr(forecast, "OWN_CGROUP", tmp_path / "own")

    assert forecast.machine_memory() == 1_000_000

    (tmp_path / "memory/job").mkdir(parents=True)
    (tmp_path / "memory/job/memory.limit_in_bytes").write_text("2000000\n")
    (tmp_path / "own").write_text("4:cpu,memory:/job\n")
    assert forecast.machine_memory() == 2_000_000


def test_quantities_are_written_with_a_prefix_and_times_in_the_unit_that_suits_them() -> None:
    assert [scaled(value, "B") for value in (0, 999, 1_230, 9.25e6, 1.5e12)] == [
        *("0 B", "999 B", "1.23 kB", "9.25 MB", "1.5 TB")
    ]
    assert [duration(seconds) for seconds in (40, 432, 7_200, 1e6)] == ["40 s", "7 min", "2 h", "12 days"]
