"""The launch file decides which processes there are; torchrun's agent reports what is wrong and no more."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerState, logger

from stages.runtime import launch


@pytest.fixture
def shown(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The records of torchrun's agent that our filter lets through."""
    assert logger.name == launch.AGENT_LOGGER
    logger.addFilter(launch.is_not_the_store_of_a_barrier_that_was_left)
    yield caplog
    logger.removeFilter(launch.is_not_the_store_of_a_barrier_that_was_left)


LEFT_BEHIND = {
    **{"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
    **{"PMI_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"},
}


@pytest.mark.parametrize("processes", [1, 2])
def test_workers_of_one_machine_do_not_see_what_slurm_mpi_or_accelerate_left_in_the_shell(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    for name, value in LEFT_BEHIND.items():
        monkeypatch.setenv(name, value)
    config = launch.LaunchConfig(Path("deploy/launch/cpu.yaml"), processes, machines=1, on_cpu=True, sharded=False)
    assert not LEFT_BEHIND.keys() & launch.environment(config).keys()


def wait_in_exit_barrier(store: TCPStore, seconds: float) -> None:
    """torchrun's own code, for the agent of one of two machines."""
    group = SimpleNamespace(state=WorkerState.SUCCEEDED, group_world_size=2)
    waiting = Mock(_worker_group=group, _exit_barrier_timeout=seconds, _store=store)
    SimpleElasticAgent._exit_barrier(waiting)


def test_an_exit_barrier_that_the_main_machine_left_first_is_no_error(shown: pytest.LogCaptureFixture) -> None:
    main = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
    other = TCPStore("127.0.0.1", main.port, is_master=False, timeout=timedelta(seconds=10))
    del main
    wait_in_exit_barrier(other, 10)
    assert shown.records == []


def test_a_machine_that_never_comes_to_the_exit_barrier_is_reported(shown: pytest.LogCaptureFixture) -> None:
    main = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
    wait_in_exit_barrier(main, 0.2)
    assert [record.msg.startswith(launch.BARRIER_MESSAGE) for record in shown.records] == [True]


def test_every_other_record_is_shown(shown: pytest.LogCaptureFixture) -> None:
    logger.error("a worker died")
    assert [(record.levelno, record.msg) for record in shown.records] == [(logging.ERROR, "a worker died")]
