"""Each stage that trains sees its own share of the GPUs, or of the cores."""

import pytest

from flows.run.slots import RESOURCES_VARIABLE
from flows.sweep.devices import THREADS, VISIBLE, Devices, gpus, shares_of


def test_a_machine_for_one_training_at_a_time_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RESOURCES_VARIABLE, raising=False)

    assert shares_of(["0", "1"], 8) == [{}]


@pytest.mark.parametrize(
    ("at_once", "devices", "shares"),
    [
        (2, ["0", "1"], [{VISIBLE: "0"}, {VISIBLE: "1"}]),
        (2, ["2", "5", "6", "7"], [{VISIBLE: "2,5"}, {VISIBLE: "6,7"}]),
        (3, ["0"], [{VISIBLE: "0"}] * 3),
        (2, [], [{THREADS: "4"}] * 2),
    ],
)
def test_what_runs_at_once_divides_the_gpus_or_the_cores(
    monkeypatch: pytest.MonkeyPatch, at_once: int, devices: list[str], shares: list[dict[str, str]]
) -> None:
    monkeypatch.setenv(RESOURCES_VARIABLE, f"accelerator={at_once}")

    assert shares_of(devices, 8) == shares


def test_the_gpus_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "3,GPU-1a")
    assert gpus() == ["3", "GPU-1a"]
    monkeypatch.setenv(VISIBLE, "")
    assert gpus() == []


def test_no_two_stages_have_the_same_share_at_once() -> None:
    devices = Devices([{VISIBLE: "0"}, {VISIBLE: "1"}])

    with devices.taken(["accelerator"]) as one, devices.taken(["accelerator"]) as two, devices.taken(["disk"]) as none:
        assert (one, two, none) == ({VISIBLE: "0"}, {VISIBLE: "1"}, {})
    with devices.taken(["accelerator"]) as again:
        assert again in ({VISIBLE: "0"}, {VISIBLE: "1"})
