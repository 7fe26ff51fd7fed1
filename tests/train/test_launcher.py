"""Presets start what they say."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from stages.formats.reports import read_json
from stages.runtime import launch
from stages.runtime.errors import EXIT_TERMINATED, EXIT_UNAVAILABLE, EXIT_USER_ERROR, UserError
from stages.runtime.launch import environment as workers_environment
from stages.runtime.launch import launch_config
from stages.runtime.supervision import VARIABLE, Supervision
from stages.train import launcher, worker
from stages.train.checkpoint import checkpoints
from stages.train.params import TrainParams
from tests.train.small_run import (
    COMMAND,
    ROOT,
    environment,
    fork,
    held_port,
    params,
    run,
    run_workers,
    start,
    write_project,
)

PRESETS = sorted((ROOT / "deploy/launch").glob("*.yaml"))


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_accelerate_reads_every_preset(preset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PARROTFLOW_LAUNCH", preset.stem)
    config = launch.launch_config()
    theirs = load_config_from_file(str(preset))
    assert (config.processes, config.machines) == (theirs.num_processes, theirs.num_machines)
    assert config.notes == []


def test_without_a_named_config_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("PARROTFLOW_LAUNCH", raising=False)
    for gpu, name, device in ((True, "one_gpu", "cuda"), (False, "cpu", "cpu")):
        monkeypatch.setattr(launch, "has_gpu", lambda gpu=gpu: gpu)
        config = launch.launch_config()
        assert (config.path, config.device_type) == (Path(f"deploy/launch/{name}.yaml"), device)


def test_other_accelerators_than_cuda_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's GPU has no float64, in which losses are summed."""
    monkeypatch.setattr(launch, "has_gpu", lambda: False)
    config = launch.LaunchConfig(ROOT / "deploy/launch/one_gpu.yaml", 1, 1, on_cpu=False, sharded=False)
    assert config.device_type == "cpu"
    assert workers_environment(config)["ACCELERATE_USE_CPU"] == "true"


def test_a_run_starts_without_a_warning(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", max_steps=2)
    values = {name: value for name, value in environment().items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "stages.train"]
    done = subprocess.run(command, cwd=project, env=values, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "model:",
        "time:",
        "memory:",
        "launching",
        "step",
        "step",
    ]
    assert done.stderr == ""


def test_after_a_second_death_without_a_new_checkpoint_the_cause_is_not_taken_for_one_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    dying = ["sh", "-c", 'touch "$PARROTFLOW_SUPERVISION/started-1"; exit 1']
    monkeypatch.setattr(launcher, "command", lambda *_: dying)

    codes = []
    for checkpoint in ("step-00000010", "step-00000020", "step-00000020"):
        Path(".parrotflow/checkpoints/f00", checkpoint).mkdir(parents=True, exist_ok=True)
        with pytest.raises(UserError) as died:
            launcher.launch(launch_config(), TrainParams.model_validate(params()))
        codes.append(died.value.exit_code)

    assert codes == [EXIT_UNAVAILABLE, EXIT_UNAVAILABLE, EXIT_USER_ERROR]
    assert "a worker died twice after .parrotflow/checkpoints/f00/step-00000020" in str(died.value)


def test_workers_train_by_the_parameters_of_the_command_although_params_yaml_was_edited_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path / "project", max_steps=3)
    monkeypatch.chdir(project)
    keep = 'cp "$PARROTFLOW_SUPERVISION/train.json" . && touch "$PARROTFLOW_SUPERVISION/started-1"; exit 1'
    monkeypatch.setattr(launcher, "command", lambda *_: ["sh", "-c", keep])
    with pytest.raises(UserError, match="a worker died"):
        launcher.launch(launch_config(), TrainParams.model_validate(params(max_steps=2)))

    command = Supervision()
    shutil.copy(project / "train.json", command.folder)
    run_workers(project, 1, **{VARIABLE: str(command.folder)})
    command.close()

    assert read_json(project / "reports/train.json")["steps"] == 2


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
    config = launch.LaunchConfig(ROOT / "deploy/launch/cpu.yaml", processes=1, machines=1, on_cpu=True, sharded=False)

    def pages(variables: Mapping[str, str]) -> int:
        command = [sys.executable, "-c", STEPS]
        return int(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)

    assert pages(workers_environment(config)) < 100
    assert pages(os.environ) > 50_000


@pytest.mark.acceptance
def test_two_sharded_processes_start_on_the_cpu(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", max_steps=3)
    said = run(project, begin=fork, PARROTFLOW_LAUNCH="cpu_2_fsdp2")
    assert "launching 2 processes by deploy/launch/cpu_2_fsdp2.yaml" in said
    assert read_json(project / "reports/train_speed.json")["processes"] == 2


@pytest.mark.acceptance
def test_two_machines_train_one_model(tmp_path: Path) -> None:
    """Both see the same folder, as on a cluster's file system."""
    project = write_project(tmp_path / "project", max_steps=3)
    settings = yaml.safe_load((ROOT / "deploy/launch/multi_node.yaml").read_text(encoding="utf-8"))
    settings |= {"use_cpu": True, "num_processes": 2, "main_process_ip": "127.0.0.1"}
    machines = []
    with held_port() as port:
        for rank in range(2):
            own = settings | {"main_process_port": port, "machine_rank": rank}
            (project / f"machine_{rank}.yaml").write_text(yaml.safe_dump(own))
            machines.append(fork(project, PARROTFLOW_LAUNCH=f"machine_{rank}.yaml"))
        for machine in machines:
            text, _ = machine.communicate()
            assert machine.returncode == 0, text
    assert read_json(project / "reports/train_speed.json")["processes"] == 2


def elsewhere() -> None:
    """The worker on a machine of its own: the second one's folder is another one."""
    if os.environ["RANK"] == "1":
        os.chdir("../other")
    worker.main()


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (0, ".parrotflow/checkpoints: 1 of 2 processes do not see the files of the main one; all machines need the "),
        (1, "train: 1 of 2 processes have other parameters, data, libraries or code than the main one"),
    ],
)
def test_machines_that_share_no_folder_or_have_other_parameters_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], seed: int, said: str
) -> None:
    monkeypatch.setattr(checkpoints, "SHARED_WITHIN_SECONDS", 0.1)
    project = write_project(tmp_path / "project")
    write_project(tmp_path / "other", seed=seed)
    run_workers(project, 2, elsewhere, expected_code=1)
    assert capfd.readouterr().err.count(f"UserError: {said}") == 2


def test_settings_of_accelerate_that_are_not_used_are_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = yaml.safe_load((ROOT / "deploy/launch/fsdp2.yaml").read_text(encoding="utf-8"))
    settings |= {"mixed_precision": "fp16", "dynamo_config": {"dynamo_backend": "INDUCTOR"}}
    settings["fsdp_config"]["fsdp_offload_params"] = True
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("PARROTFLOW_LAUNCH", str(own))
    assert launch.launch_config().notes == [
        f"note: {own}: not used: dynamo_config.dynamo_backend, fsdp_config.fsdp_offload_params, mixed_precision "
        "(precision, compilation and sharding are set by params.yaml and PARROTFLOW_COMPILE)"
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distributed_type": "DEEPSPEED"}, "distributed_type = DEEPSPEED is not supported; use one of NO, "),
        ({"distributed_type": "FSDP", "fsdp_config": {"fsdp_offload_params": True}}, "FSDP 1 is not supported"),
        (
            {
                "distributed_type": "FSDP",
                "num_processes": 4,
                "fsdp_config": {"fsdp_version": 2},
                "parallelism_config": {"parallelism_config_dp_replicate_size": 2},
            },
            "parallelism_config_dp_replicate_size = 2 and parallelism_config_dp_shard_size = 1: their product must be ",
        ),
    ],
)
def test_engines_that_are_not_supported_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], message: str
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("PARROTFLOW_LAUNCH", str(own))
    with pytest.raises(UserError) as caught:
        launch.launch_config()
    assert f"{own}: {message}" in str(caught.value)


@pytest.mark.acceptance
def test_a_config_that_accelerate_rejects_is_named_last(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", max_steps=2)
    settings = yaml.safe_load((ROOT / "deploy/launch/cpu.yaml").read_text(encoding="utf-8"))
    (project / "own.yaml").write_text(yaml.safe_dump(settings | {"no_such_key": 1}))
    said = run(project, EXIT_USER_ERROR, fork, PARROTFLOW_LAUNCH="own.yaml")
    assert said.splitlines()[-1] == (
        "error: own.yaml: accelerate could not start a worker with it; its messages are above"
    )


def test_a_command_that_is_stopped_while_it_still_imports_torch_says_so_by_its_exit_code(tmp_path: Path) -> None:
    process = start(tmp_path, (sys.executable, "-X", "importtime", *COMMAND[1:]))
    assert process.stdout is not None
    for line in process.stdout:
        if "stages.formats.tokens" in line:
            break
    process.terminate()
    process.communicate()
    assert process.returncode == EXIT_TERMINATED == 143


def test_a_slow_choice_stays_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert launcher.describe_precision("auto", "cpu") == "fp32"
    assert launcher.describe_precision("bf16", "cpu") == (
        "bf16 (slow: fp32 is faster on this CPU; train.precision: auto takes it)"
    )
