"""The launch file alone decides which processes there are."""

from pathlib import Path

import pytest

from stages.runtime import launch
from stages.runtime.errors import UserError

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


def test_a_configuration_that_accelerate_would_read_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("num_processes: 2\nuse_cpu: no\n")
    monkeypatch.setenv(launch.LAUNCH, str(tmp_path / "mine.yaml"))

    with pytest.raises(UserError, match=r"mine\.yaml: use_cpu = no: write true or false$"):
        launch.launch_config()
