"""Presets start what they say; so does the user's own accelerate configuration."""

import os
import platform
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from stages.formats.reports import read_json
from stages.train.launch import launcher as launch
from tests.train.small_run import ROOT, environment, run, write_project

PRESETS = sorted((ROOT / "launch").glob("*.yaml"))


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_accelerate_reads_every_preset(preset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PARROTFLOW_LAUNCH", preset.stem)
    config = launch.launch_config()
    theirs = load_config_from_file(str(preset))
    assert (config.processes, config.machines) == (theirs.num_processes, theirs.num_machines)


def test_the_users_own_accelerate_config_counts_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "default_config.yaml"
    own.write_text("num_processes: 3\nuse_cpu: true\n", encoding="utf-8")
    monkeypatch.delenv("PARROTFLOW_LAUNCH", raising=False)
    monkeypatch.setattr(launch, "default_yaml_config_file", str(own))
    assert launch.launch_config() == launch.LaunchConfig(own, 3, 1, on_cpu=True, sharded=False)


def test_without_any_the_machine_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("PARROTFLOW_LAUNCH", raising=False)
    monkeypatch.setattr(launch, "default_yaml_config_file", str(tmp_path / "none.yaml"))
    monkeypatch.setattr(launch, "default_json_config_file", str(tmp_path / "none.json"))
    for gpu, name in ((True, "one_gpu"), (False, "cpu")):
        monkeypatch.setattr(launch, "has_gpu", lambda gpu=gpu: gpu)
        assert launch.launch_config().path == Path(f"launch/{name}.yaml")


def test_a_run_starts_without_a_warning(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", max_steps=1)
    values = {name: value for name, value in environment().items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "stages.train"]
    done = subprocess.run(command, cwd=project, env=values, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["launching", "step"]
    assert done.stderr == ""


STEPS = """
import resource, torch
def step():
    (torch.ones(10 * 2**20) + 1).sum()
for _ in range(20):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's settings")
def test_workers_keep_the_memory_that_a_step_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in pages that the kernel has to hand out anew while tensors of 40 MiB come and go."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    config = launch.LaunchConfig(ROOT / "launch/cpu.yaml", processes=1, machines=1, on_cpu=True, sharded=False)

    def pages(variables: Mapping[str, str]) -> int:
        command = [sys.executable, "-c", STEPS]
        return int(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)

    assert pages(launch.environment(config)) < 100
    assert pages(os.environ) > 50_000


def test_two_sharded_processes_start_on_the_cpu(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", max_steps=3)
    assert "launching 2 processes by launch/cpu_2_fsdp2.yaml" in run(project, PARROTFLOW_LAUNCH="cpu_2_fsdp2")
    assert read_json(project / "reports/train_speed.json")["processes"] == 2


def test_two_machines_train_one_model(tmp_path: Path) -> None:
    """Two launchers on the loopback device; both see the same folder, as on a cluster's file system."""
    project = write_project(tmp_path / "project", max_steps=3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = yaml.safe_load((ROOT / "launch/multi_node.yaml").read_text(encoding="utf-8"))
    settings |= {"use_cpu": True, "num_processes": 2, "main_process_ip": "127.0.0.1", "main_process_port": port}
    said: dict[int, str] = {}
    machines = []
    for rank in (0, 1):
        (project / f"machine_{rank}.yaml").write_text(yaml.safe_dump(settings | {"machine_rank": rank}))
        machines.append(threading.Thread(target=_run, args=(project, rank, said)))
    for machine in machines:
        machine.start()
    for machine in machines:
        machine.join(timeout=200)
    assert sorted(said) == [0, 1]
    assert read_json(project / "reports/train_speed.json")["processes"] == 2


def _run(project: Path, rank: int, said: dict[int, str]) -> None:
    said[rank] = run(project, PARROTFLOW_LAUNCH=f"machine_{rank}.yaml", PARROTFLOW_RESTARTS="0")
