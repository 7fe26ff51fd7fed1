"""What the machine or the environment cannot do is refused with one message, before work is lost."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stages.formats.tokens import Manifest
from stages.runtime import launch
from stages.runtime.entry import EXIT_USER_ERROR, UserError
from stages.runtime.launch import LaunchConfig
from stages.train import __main__ as stage
from stages.train import forecast, launcher
from stages.train.hardware import given_micro_batch_size, should_compile
from stages.train.model.build import build_config, build_model, source_folder
from stages.train.params import TrainParams
from tests.train.small_run import ROOT, copy_of, fork, params, run, write_project

VOCABULARY = Manifest("uint16", 300, 0, "", "", ())

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
def started(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[LaunchConfig]:
    """What the stage would launch; it starts no worker."""
    configs: list[LaunchConfig] = []

    monkeypatch.chdir(project)
    monkeypatch.setattr(stage, "launch", configs.append)
    return configs


def no_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A PATH without g++ and clang++."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize("found", [0, 2])
def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, found: int) -> None:
    monkeypatch.setattr(launch, "device_count", lambda: found)
    monkeypatch.setenv("PARROTFLOW_LAUNCH", str(ROOT / "deploy/launch/multi_node.yaml"))
    config = replace(launch.launch_config(), path=Path("deploy/launch/multi_node.yaml"))
    with pytest.raises(UserError) as caught:
        launch.require_devices(config)
    assert str(caught.value) == (
        f"deploy/launch/multi_node.yaml starts 8 processes on this machine, each on a GPU, and torch finds {found}; "
        "copy the file and set num_processes, or launch by cpu or one_gpu"
    )


def test_as_many_processes_as_gpus_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "device_count", lambda: 2)
    launch.require_devices(LaunchConfig(Path("two_gpus.yaml"), 2, 1, on_cpu=False, sharded=True))


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
    model = build_config(values, VOCABULARY)
    assert len(list(launcher.note_dropout(values, model))) == notes
    fixed = values.model_copy(update={"deterministic_micro_batch_size": 4})
    assert not list(launcher.note_dropout(fixed, model))


@pytest.mark.parametrize(
    ("fields", "sequence_length", "said"),
    [
        ({"n_positions": 8}, 16, "it has 8 positions, train.sequence_length = 16; lower it to 8 or less"),
        ({"n_positions": 64}, 64, ""),
        ({"vocab_size": 299}, 16, "its vocabulary has 299 entries, the tokens have 300; use its tokenizer "),
    ],
)
def test_a_start_from_a_model_that_does_not_fit_is_refused(
    tmp_path: Path, fields: dict[str, int], sequence_length: int, said: str
) -> None:
    config = AutoConfig.for_model("gpt2", **{"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 300} | fields)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    values = TrainParams.model_validate(params(start_from=str(tmp_path), sequence_length=sequence_length))
    if not said:
        build_model(values, VOCABULARY)
        return
    with pytest.raises(UserError) as refused:
        build_model(values, VOCABULARY)
    assert str(refused.value).startswith(f"params.yaml: train.start_from = '{tmp_path}': {said}")


def test_a_start_from_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.start_from = '.*/nothing': no such folder; "):
        source_folder(str(tmp_path / "nothing"))


@pytest.mark.parametrize("given", ["0", "-2", "all"])
def test_a_micro_batch_of_no_sequences_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("PARROTFLOW_MICRO_BATCH", given)
    with pytest.raises(UserError, match=f"PARROTFLOW_MICRO_BATCH={given}: expected a whole number, 1 or more"):
        given_micro_batch_size(TrainParams.model_validate(params()), "cpu", 8)


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
