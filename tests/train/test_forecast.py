"""What is said of a run before it starts, and which runs are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stages.runtime.entry import UserError
from stages.runtime.launch import LaunchConfig
from stages.train import forecast
from stages.train.forecast import Forecast, duration, make_forecast, scaled
from stages.train.model.build import build_model
from stages.train.monitoring.throughput import device_name
from stages.train.optim.optimizers import build_optimizers
from stages.train.params import TrainParams
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import params

ALONE = LaunchConfig(Path("deploy/launch/cpu.yaml"), processes=1, machines=1, on_cpu=True, sharded=False)


def made(launch: LaunchConfig = ALONE, **changes: object) -> Forecast:
    given = {"model": MODELS["llama"], "precision": "fp32", "global_batch_size": 8, "max_steps": 20} | changes
    return make_forecast(TrainParams.model_validate(params(**given)), vocabulary(), launch)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which nothing was measured."""
    (tmp_path / "reports").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_last_run(folder: Path, **changes: object) -> None:
    """The report of a run of the model of `made`."""
    values = {"device": device_name(torch.device("cpu")), "processes": 1, "precision": "fp32", "seconds": 3.0}
    values |= {"flops_per_token": made().flops_per_token, "tokens_per_second": 12_345.0} | changes
    (folder / "reports/train_speed.json").write_text(json.dumps(values))


def test_the_lines_say_model_operations_time_and_the_state_by_part() -> None:
    found = made()

    model, time, memory = found.lines
    assert f"{found.parameters:,} parameters" in model
    assert f"{found.tokens:,} tokens in 20 steps" in model
    assert found.tokens == 20 * 8 * found.params.sequence_length
    assert time.startswith("time: ")
    assert all(f"{part} " in memory for part in ("weights", "gradients", "optimizer"))
    assert memory.endswith(" in the process, and activations (fp32)")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_state_is_what_a_model_with_values_keeps(optimizer: str) -> None:
    found = made(optimizer__name=optimizer)
    model = build_model(found.params, vocabulary())
    optimizers = build_optimizers(model, found.params.optimizer, "fp32")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(1.0)
    kept = [tensor for one in optimizers for state in one.state.values() for tensor in state.values()]
    assert found.state["gradients"] == sum(parameter.nbytes for parameter in model.parameters())
    assert found.state["optimizer"] == sum(tensor.nbytes for tensor in kept if isinstance(tensor, torch.Tensor))


def test_a_process_has_its_share_of_the_machine_and_of_a_sharded_model() -> None:
    two = made(replace(ALONE, processes=2))
    assert two.capacity == made().capacity // 2
    assert two.state == made().state
    sharded = made(replace(ALONE, processes=2, sharded=True))
    assert sharded.state == {part: size // 2 for part, size in made().state.items()}


def test_a_state_that_cannot_fit_is_refused_with_the_numbers_and_what_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = made().needed
    monkeypatch.setattr(forecast, "device_memory", lambda _: needed)
    made().check_fits()

    monkeypatch.setattr(forecast, "device_memory", lambda _: needed - 1)
    with pytest.raises(UserError) as refused:
        made().check_fits()
    message = str(refused.value)
    assert f"= {scaled(needed, 'B')} of {scaled(needed - 1, 'B')} for each process" in message
    assert message.endswith("shard the model over several GPUs (PARROTFLOW_LAUNCH=fsdp2) or choose a smaller model")


def test_the_time_is_that_of_the_last_run_of_this_model(here: Path) -> None:
    write_last_run(here)
    assert " at 12,345 tokens/s, measured for this model on " in made().lines[1]


@pytest.mark.parametrize(
    "other", [{"device": "another"}, {"processes": 2}, {"precision": "bf16"}, {"flops_per_token": 1000}]
)
def test_a_run_of_another_model_or_on_other_hardware_tells_nothing(here: Path, other: dict[str, object]) -> None:
    write_last_run(here, **other)
    assert made().lines[1].startswith("time: not known: the last run was not of this model on ")


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_report_of_speed_is_none(here: Path, text: str) -> None:
    (here / "reports/train_speed.json").write_text(text)
    assert made().speed.tokens_per_second is None


def test_quantities_are_written_with_a_prefix_and_times_in_the_unit_that_suits_them() -> None:
    assert [scaled(value, "B") for value in (0, 999, 1_230, 9.25e6, 1.5e12)] == [
        *("0 B", "999 B", "1.23 kB", "9.25 MB", "1.5 TB")
    ]
    assert [duration(seconds) for seconds in (40, 432, 7_200, 1e6)] == ["40 s", "7 min", "2 h", "12 days"]
