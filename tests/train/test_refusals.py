"""A mistake, or what the machine cannot do, ends the run before any worker starts, with one message."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stages.formats.tokens import TokenStore
from stages.runtime import launch
from stages.runtime.errors import STAGES_TO_DO, UserError
from stages.runtime.launch import LaunchConfig
from stages.train import __main__ as stage
from stages.train import launcher
from stages.train.checkpoint.identity import check_vocabulary
from stages.train.commands import forecast
from stages.train.compute.hardware import should_compile
from stages.train.compute.model.build import build_config, build_model
from stages.train.params import TrainParams
from tests.train.models import vocabulary
from tests.train.small_run import ROOT, params, swap_two_tokens, write_params, write_project

HUGE = 1e30
"""Floating-point operations a token: compiling repays itself."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that could run, to spoil, as the current folder; no worker may start."""
    folder = write_project(tmp_path / "project")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "cpu")

    def refuse(config: object, params: object) -> int:
        raise AssertionError("a worker would start")

    monkeypatch.setattr(stage, "launch", refuse)
    return folder


def message() -> str:
    """What the stage says."""
    with pytest.raises(UserError) as caught:
        stage.main()
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"model__model_type": "gpt9"},
            "train.model.model_type = 'gpt9': no such architecture in transformers; e.g. ",
        ),
        ({"model__n_layers": 3}, "train.model.n_layers: no such field in the config of `gpt2`"),
        ({"model__n_head": 3}, "train.model: cannot build `gpt2` with these fields: ValueError: `embed_dim` must be "),
        (
            {"sequence_length": 64, "model__n_positions": 32},
            "train.sequence_length = 64: the model has 32 positions; lower it, or raise",
        ),
        (
            {"deterministic_micro_batch_size": 3},
            "train.deterministic_micro_batch_size = 3: train.global_batch_size",
        ),
        ({"start_from": "model/step-00000003"}, "train.start_from = 'model/step-00000003': model/ is what this stage "),
        (
            {"start_from": "openai-community/gpt2"},
            "train.start_from = 'openai-community/gpt2': no such folder; a ",
        ),
        (
            {"trackers": ["mlflow"]},
            "monitoring.trackers: `mlflow` is not installed; `pip install mlflow`",
        ),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(project: Path, change: dict[str, Any], expected: str) -> None:
    write_params(project, **change)
    assert message().startswith(f"params.yaml: {expected}")


def test_more_processes_than_sequences_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "cpu_2")
    write_params(project, global_batch_size=1)
    assert "train.global_batch_size = 1: deploy/launch/cpu_2.yaml starts 2 processes, and each takes" in message()


def test_a_token_store_of_another_tokenizer_is_refused(project: Path) -> None:
    file = project / "data/tokenizer/tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert message() == "data/tokens/train: made with another tokenizer than data/tokenizer; run `dvc repro tokenize`"


def test_an_unknown_launch_preset_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "tpu")
    said = message()
    assert said.startswith("PARROTFLOW_LAUNCH=tpu: neither a file nor a preset (cpu, cpu_2, ")


@pytest.mark.parametrize(("split", "raises_share"), [("train", False), ("validation", True)])
def test_a_split_shorter_than_one_row_names_the_parameters_that_help(
    project: Path, split: str, raises_share: bool
) -> None:
    store = TokenStore(project / "data/tokens" / split)
    values = TrainParams.model_validate(params(sequence_length=10**6))
    with pytest.raises(UserError) as refused:
        launcher.check_store(store, values, project / "data/tokenizer")
    assert "are fewer than one sequence (train.sequence_length = 1000000); lower it, " in str(refused.value)
    assert str(refused.value).endswith("or raise clean.split.validation_share") == raises_share


@pytest.mark.parametrize("found", [0, 2])
def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, found: int) -> None:
    monkeypatch.setattr(launch, "device_count", lambda: found)
    monkeypatch.setenv("PARROTFLOW_LAUNCH", str(ROOT / "deploy/launch/multi_node.yaml"))
    config = replace(launch.launch_config(), path=Path("deploy/launch/multi_node.yaml"))
    with pytest.raises(UserError, match=rf"yaml needs 8 GPUs on this .* torch finds {found}; copy the file"):
        launch.require_devices(config)
    launch.require_devices(replace(config, processes=found))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without a GPU")
def test_the_preset_for_one_gpu_says_that_it_runs_on_the_cpu(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "one_gpu")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # fp32 is then the faster one on any CPU
    with pytest.raises(AssertionError, match="a worker would start"):
        stage.main()
    assert capfd.readouterr().out.endswith(
        "\nlaunching 1 process by deploy/launch/one_gpu.yaml, in fp32; torch finds no GPU: on the CPU\n"
    )


def test_a_run_that_cannot_fit_says_what_it_needs_and_starts_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecast, "device_memory", lambda _: 1_000)
    assert re.match(r"train: the run cannot fit: weights .* of 1 kB for each process", message())
    assert "memory: weights " in capfd.readouterr().out

    monkeypatch.setenv(STAGES_TO_DO, "train")
    assert message()
    assert capfd.readouterr().out == "", "a flow has shown the forecast before the run"


def test_without_a_compiler_compiling_for_the_cpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # without g++ and clang++
    monkeypatch.setenv("PARROTFLOW_COMPILE", "on")
    with pytest.raises(UserError, match=r"^PARROTFLOW_COMPILE=on: .* needs a C\+\+ compiler .*; install one$"):
        should_compile(TrainParams.model_validate(params()), HUGE, torch.device("cpu"))


def test_compiling_for_the_cpu_is_refused_below_a_path_with_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", "/my project/torch/__init__.py")
    monkeypatch.setenv("PARROTFLOW_COMPILE", "on")
    with pytest.raises(UserError, match=r"cannot compile for the CPU from a path with a space \(/my project/torch\)"):
        should_compile(TrainParams.model_validate(params()), HUGE, torch.device("cpu"))


def test_left_to_itself_it_compiles_for_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_COMPILE", "auto")
    assert not should_compile(TrainParams.model_validate(params()), HUGE, torch.device("cpu"))


def test_a_wish_for_compiling_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_COMPILE", "maybe")
    with pytest.raises(UserError, match="PARROTFLOW_COMPILE=maybe: expected auto, on or off"):
        should_compile(TrainParams.model_validate(params()), HUGE, torch.device("cpu"))


def test_a_sharded_model_has_no_deterministic_sum() -> None:
    config = LaunchConfig(Path("deploy/launch/fsdp2.yaml"), 2, 1, on_cpu=False, sharded=True)
    with pytest.raises(UserError, match=r"deterministic_micro_batch_size = 4: .*fsdp2.yaml shards the model"):
        launcher.check_batch(TrainParams.model_validate(params(deterministic_micro_batch_size=4)), config)


@pytest.mark.parametrize(("fields", "notes"), [({}, 0), ({"model__embd_pdrop": 0.1}, 1)])
def test_dropout_that_depends_on_the_launch_is_said_so(fields: dict[str, float], notes: int) -> None:
    values = TrainParams.model_validate(params(**fields))
    model = build_config(values, vocabulary())
    assert len(list(launcher.note_dropout(values, model))) == notes
    fixed = values.model_copy(update={"deterministic_micro_batch_size": 4})
    assert not list(launcher.note_dropout(fixed, model))


@pytest.mark.parametrize(
    ("fields", "sequence_length", "model", "said"),
    [
        ({"n_positions": 8}, 16, {}, "train.sequence_length = 16: the model has 8 positions; lower it"),
        ({"n_positions": 64}, 64, {}, ""),
        ({"n_positions": 64}, 64, {"model_type": "gpt2", "resid_pdrop": 0.0}, ""),
        (
            {},
            16,
            {"n_layer": 2},
            "train.start_from = 'FOLDER': weights are missing: transformer.h.1.attn.c_attn.bias, ",
        ),
    ],
)
def test_a_start_from_a_model_that_does_not_fit_is_refused(
    tmp_path: Path, fields: dict[str, int], sequence_length: int, model: dict[str, Any], said: str
) -> None:
    config = AutoConfig.for_model("gpt2", **{"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 300} | fields)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    values = TrainParams.model_validate(params(start_from=str(tmp_path), sequence_length=sequence_length, model=model))
    if not said:
        build_model(values, vocabulary())
        return
    with pytest.raises(UserError) as refused:
        build_model(values, vocabulary())
    assert str(refused.value).replace(str(tmp_path), "FOLDER").startswith(f"params.yaml: {said}")


def test_a_start_from_a_model_with_another_tokenizer_is_refused(project: Path) -> None:
    tokenizer, own = project / "data/tokenizer", project / "base/tokenizer.json"
    own.parent.mkdir()
    own.with_name("model.safetensors").touch()
    assert list(check_vocabulary("base")) == [
        "note: train.start_from: base has no tokenizer.json: its ids are assumed to be the tokenizer's"
    ]
    own.write_text(json.dumps(json.loads((tokenizer / "tokenizer.json").read_bytes())))
    assert list(check_vocabulary("base")) == []
    (project / "base/generation_config.json").write_text("{}")
    assert list(check_vocabulary("base")) == ["note: train.start_from: the generation_config.json of base is ignored"]

    swap_two_tokens(own)

    with pytest.raises(UserError, match=r"start_from = 'base': it has another tokenizer \(id \d+ is '[ab]' there"):
        list(check_vocabulary("base"))


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
    assert not list(launcher.note_idle_devices(replace(config, processes=1, on_cpu=True)))
