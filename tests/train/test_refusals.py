"""What the machine or the environment cannot do is refused with one message, before work is lost."""

import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from stages.formats.tokens import Manifest
from stages.runtime import launch
from stages.runtime.entry import EXIT_USER_ERROR, UserError
from stages.runtime.launch import LaunchConfig
from stages.train import __main__ as stage
from stages.train import forecast, launcher
from stages.train.hardware import should_compile
from stages.train.model.build import build_config
from stages.train.params import TrainParams
from tests.train.small_run import ROOT, copy_of, fork, params, run, run_workers, write_params, write_project

HUGE = 1e30
"""Floating-point operations a token: compiling repays itself."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that could run."""
    return write_project(tmp_path_factory.mktemp("inputs"), max_steps=2)


@pytest.fixture
def project(inputs: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return copy_of(inputs, tmp_path / "project")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield int(listening.getsockname()[1])


@pytest.fixture
def started(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[LaunchConfig]:
    """What the stage would launch; it starts no worker."""
    configs: list[LaunchConfig] = []

    def take(config: LaunchConfig, params: TrainParams) -> int:
        configs.append(config)
        return 0

    monkeypatch.chdir(project)
    monkeypatch.setattr(stage, "launch", take)
    return configs


def no_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A PATH without g++ and clang++."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(folder))


def several_machines(project: Path, port: int) -> Path:
    settings = yaml.safe_load((ROOT / "deploy/launch/multi_node.yaml").read_text(encoding="utf-8"))
    settings |= {"use_cpu": True, "num_processes": 2, "main_process_ip": "127.0.0.1", "main_process_port": port}
    (project / "machines.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return project / "machines.yaml"


def test_a_port_in_use_on_the_leading_machine_is_refused(
    project: Path, started: list[LaunchConfig], taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    several_machines(project, taken)
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "machines.yaml")
    with pytest.raises(UserError) as caught:
        stage.main()
    assert str(caught.value) == (
        f"machines.yaml: main_process_port = {taken} is in use on this machine; end what holds it "
        "(a run before this one?), or set another port on every machine"
    )
    assert not started


def test_a_machine_that_joins_another_may_use_the_port_itself(
    project: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = several_machines(project, taken)
    path.write_text(path.read_text(encoding="utf-8").replace("machine_rank: 0", "machine_rank: 1"), encoding="utf-8")
    monkeypatch.setenv("PARROTFLOW_LAUNCH", str(path))
    launcher.check_machine(launch.launch_config())


def test_one_machine_takes_a_free_port_where_the_configured_one_is_in_use(project: Path, taken: int) -> None:
    settings = yaml.safe_load((ROOT / "deploy/launch/cpu_2.yaml").read_text(encoding="utf-8"))
    settings["main_process_port"] = taken
    (project / "two.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    said = run(project, begin=fork, PARROTFLOW_LAUNCH="two.yaml")
    assert "launching 2 processes by two.yaml" in said
    assert (project / "model/model.safetensors").is_file()


@pytest.mark.parametrize("found", [0, 2])
def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, found: int) -> None:
    monkeypatch.setattr(launch, "device_count", lambda: found)
    monkeypatch.setenv("PARROTFLOW_LAUNCH", str(ROOT / "deploy/launch/multi_node.yaml"))
    config = replace(launch.launch_config(), path=Path("deploy/launch/multi_node.yaml"))
    with pytest.raises(UserError) as caught:
        launcher.check_machine(config)
    assert str(caught.value) == (
        f"deploy/launch/multi_node.yaml starts 8 processes on this machine, each on a GPU, and torch finds {found}; "
        "copy the file and set num_processes, or launch by cpu or one_gpu"
    )


def test_as_many_processes_as_gpus_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "device_count", lambda: 2)
    launcher.check_machine(LaunchConfig(Path("two_gpus.yaml"), 2, 1, on_cpu=False, sharded=True))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("preset", ["ddp", "fsdp2"])
def test_a_preset_for_many_gpus_starts_nothing_where_there_are_none(
    started: list[LaunchConfig], monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    monkeypatch.setenv("PARROTFLOW_LAUNCH", preset)
    with pytest.raises(UserError, match=f"{preset}.yaml starts 8 processes on this machine, each on a GPU, and"):
        stage.main()
    assert not started


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without a GPU")
def test_the_preset_for_one_gpu_says_that_it_runs_on_the_cpu(
    started: list[LaunchConfig], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "one_gpu")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # fp32 is then the faster one on any CPU
    stage.main()
    assert capfd.readouterr().out.endswith(
        "\nlaunching 1 process by deploy/launch/one_gpu.yaml, in fp32; torch finds no GPU: on the CPU\n"
    )
    assert len(started) == 1


def test_a_run_that_cannot_fit_says_what_it_needs_and_starts_nothing(
    started: list[LaunchConfig], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecast, "device_memory", lambda _: 1_000)
    with pytest.raises(UserError, match=r"train: the run cannot fit: weights .* of 1 kB for each process"):
        stage.main()
    assert "memory: weights " in capfd.readouterr().out
    assert not started


def test_without_a_compiler_compiling_for_the_cpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_compiler(monkeypatch, tmp_path)
    monkeypatch.setenv("PARROTFLOW_COMPILE", "on")
    with pytest.raises(UserError) as caught:
        should_compile(TrainParams.model_validate(params()), HUGE, torch.device("cpu"))
    assert str(caught.value) == (
        "PARROTFLOW_COMPILE=on: compiling for the CPU needs a C++ compiler (g++ or clang++); install one"
    )


def test_left_to_itself_it_compiles_for_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_COMPILE", "auto")
    assert not should_compile(TrainParams.model_validate(params()), HUGE, torch.device("cpu"))


def test_a_wish_for_compiling_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_COMPILE", "maybe")
    with pytest.raises(UserError, match="PARROTFLOW_COMPILE=maybe: expected auto, on or off"):
        should_compile(TrainParams.model_validate(params()), HUGE, torch.device("cpu"))


def test_two_processes_without_a_compiler_refuse_once_and_are_not_started_again(project: Path, tmp_path: Path) -> None:
    said = run(
        project,
        expected_code=EXIT_USER_ERROR,
        begin=fork,
        PARROTFLOW_LAUNCH="cpu_2",
        PARROTFLOW_COMPILE="on",
        PATH=str(tmp_path),
        CXX="",
    )
    assert said.splitlines()[4:] == [
        "error: PARROTFLOW_COMPILE=on: compiling for the CPU needs a C++ compiler (g++ or clang++); install one"
    ]


def test_a_sharded_model_has_no_deterministic_sum() -> None:
    config = LaunchConfig(Path("deploy/launch/fsdp2.yaml"), 2, 1, on_cpu=False, sharded=True)
    with pytest.raises(UserError, match=r"deterministic_micro_batch_size = 4: .*fsdp2.yaml shards the model"):
        launcher.check_batch(TrainParams.model_validate(params(deterministic_micro_batch_size=4)), config)


@pytest.mark.parametrize(("fields", "notes"), [({}, 0), ({"model__embd_pdrop": 0.1}, 1)])
def test_dropout_that_depends_on_the_launch_is_said_so(fields: dict[str, float], notes: int) -> None:
    values = TrainParams.model_validate(params(**fields))
    model = build_config(values, Manifest("uint16", 300, 0, "", "", ()))
    assert len(list(launcher.note_dropout(values, model))) == notes
    fixed = values.model_copy(update={"deterministic_micro_batch_size": 4})
    assert not list(launcher.note_dropout(fixed, model))


def refused(project: Path, capfd: pytest.CaptureFixture[str], **variables: str) -> str:
    """Why a worker refuses."""
    with pytest.raises(AssertionError):
        run_workers(project, 1, **variables)
    return capfd.readouterr().err.splitlines()[-1]


def test_a_start_from_a_model_with_fewer_positions_than_a_sequence_is_refused(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_params(project, max_steps=2, sequence_length=8, model__n_positions=8)
    run_workers(project, 1)
    short = shutil.move(project / "model", tmp_path / "short")
    write_params(project, max_steps=2, start_from=str(short))
    assert refused(project, capfd).endswith(
        f"params.yaml: train.start_from = '{short}': it has 8 positions, train.sequence_length = 16; "
        "lower it to 8 or less"
    )


def test_a_start_from_a_model_with_more_positions_than_the_parameters_name_is_not_refused(
    project: Path, tmp_path: Path
) -> None:
    write_params(project, max_steps=2, model__n_positions=64)
    run_workers(project, 1)
    long = shutil.move(project / "model", tmp_path / "long")
    write_params(project, max_steps=2, sequence_length=64, start_from=str(long))
    run_workers(project, 1)


def test_a_start_from_a_model_of_a_smaller_vocabulary_or_from_none_is_refused(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_workers(project, 1)
    other = Path(shutil.move(project / "model", tmp_path / "other"))
    write_params(project, max_steps=2, start_from=str(tmp_path / "nothing"))
    assert f"train.start_from = '{tmp_path / 'nothing'}': no such folder; " in refused(project, capfd)

    manifest = project / "data/tokens/train/manifest.json"
    write_params(project, max_steps=2, start_from=str(other))
    manifest.write_text(manifest.read_text(encoding="utf-8").replace('"vocab_size": 300', '"vocab_size": 301'))
    assert "its vocabulary has 300 entries, the tokens have 301; use its tokenizer" in refused(project, capfd)


@pytest.mark.parametrize("given", ["0", "-2", "all"])
def test_a_micro_batch_of_no_sequences_is_refused(project: Path, capfd: pytest.CaptureFixture[str], given: str) -> None:
    said = refused(project, capfd, PARROTFLOW_MICRO_BATCH=given)
    assert said.endswith(f"PARROTFLOW_MICRO_BATCH={given}: expected a whole number, 1 or more")


@pytest.mark.parametrize(("processes", "gpus", "idle"), [(1, 8, "7 of 8"), (2, 4, "2 of 4"), (8, 8, None)])
def test_gpus_that_would_stay_idle_are_named(
    monkeypatch: pytest.MonkeyPatch, processes: int, gpus: int, idle: str | None
) -> None:
    monkeypatch.setattr(launcher, "device_count", lambda: gpus)
    config = LaunchConfig(Path("deploy/launch/one_gpu.yaml"), processes, 1, on_cpu=False, sharded=False)
    notes = list(launcher.note_idle_devices(config))
    assert len(notes) == (idle is not None)
    if idle:
        assert notes[0].startswith(f"note: {idle} GPUs of this machine stay idle: deploy/launch/one_gpu.yaml starts ")
        assert f"num_processes: {gpus}" in notes[0]
    assert not list(
        launcher.note_idle_devices(LaunchConfig(Path("deploy/launch/cpu.yaml"), 1, 1, on_cpu=True, sharded=False))
    )
