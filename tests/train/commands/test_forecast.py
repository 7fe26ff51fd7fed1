"""What is said of the cost of a run before it starts, where `parrotflow` asks for it, and which runs it refuses."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from stages.formats.reports import read_json
from stages.runtime.atomic import LFS_POINTER
from stages.runtime.errors import EXIT_CONTINUE, STAGES_TO_DO, UserError
from stages.runtime.launch import LaunchConfig
from stages.runtime.section import read_section
from stages.train.commands import forecast
from stages.train.commands.forecast import Forecast, duration, lines_of_tokens, main, make_forecast, scaled
from stages.train.commands.forecast import vocabulary as vocabulary_of
from stages.train.compute.model.build import build_model
from stages.train.compute.optim.build import build_optimizers
from stages.train.monitoring.throughput import device_name
from stages.train.params import TrainParams
from tests.small_project import ROOT
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import environment, params, run_workers, stopped_at, write_params, write_project

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
    values |= {"flops_per_token": made().flops_per_token, "parameters": made().parameters}
    values |= {"tokens_per_second": 12_345.0} | changes
    (folder / "reports/train_speed.json").write_text(json.dumps(values))


def test_the_lines_say_model_operations_time_and_the_state_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made()

    model, time, memory = found.lines
    assert f"{found.parameters:,} parameters if the vocabulary has 300 tokens, " in model
    assert f"{found.params.tokens:,} tokens in 20 steps" in model
    corpus = replace(found, corpus_tokens=2 * found.params.tokens)
    assert f"{found.parameters:,} parameters, " in corpus.lines[0]
    assert f"tokens of a corpus of {2 * found.params.tokens:,} (0.50 epochs) in 20 steps" in corpus.lines[0]
    monkeypatch.setenv(STAGES_TO_DO, "tokenize train")
    assert "(0.50 epochs), as it was last time, in 20 steps" in corpus.lines[0]
    assert found.params.tokens == 20 * 8 * found.params.sequence_length
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


def test_the_time_is_that_of_the_last_run_of_this_model(here: Path) -> None:
    write_last_run(here)
    assert " at 12,345 tokens/s, measured for this model on " in made().lines[1]


@pytest.mark.parametrize(
    "other",
    [{"device": "another"}, {"processes": 2}, {"precision": "bf16"}, {"flops_per_token": 1000}, {"parameters": 1}],
)
def test_a_run_of_another_model_or_on_other_hardware_tells_nothing(here: Path, other: dict[str, object]) -> None:
    write_last_run(here, **other)
    assert made().lines[1].startswith("time: unknown until this model has been trained on ")


def test_a_damaged_report_of_speed_is_none(here: Path) -> None:
    (here / "reports/train_speed.json").write_text("{")
    assert made().tokens_per_second is None


def test_quantities_are_written_with_a_prefix_and_times_in_the_unit_that_suits_them() -> None:
    assert [scaled(value, "B") for value in (0, 999, 1_230, 9.25e6, 1.5e12)] == [
        *("0 B", "999 B", "1.23 kB", "9.25 MB", "1.5 TB")
    ]
    assert [duration(seconds) for seconds in (40, 432, 7_200, 1e6)] == ["40 s", "7 min", "2 h", "12 days"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the real parameters and presets."""
    for folder in ("conf", "deploy"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


def parrotflow_params(project: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "flows.cli", "params", *words, "--yes"]
    return subprocess.run(command, cwd=project, env=environment(), check=False, capture_output=True, text=True)


def test_parrotflow_params_says_what_the_training_of_what_it_composed_costs(project: Path) -> None:
    said = parrotflow_params(project, "optimizer=adamw", "train.max_steps=2000")

    assert said.returncode == 0, said.stderr
    size = "model: 4,336,256 parameters if the vocabulary has 32,768 tokens, 1.74 MFLOP per token"
    assert f"{size}; 4,096,000 tokens in 2,000 steps" in said.stdout
    assert "memory: weights " in said.stdout
    assert yaml.safe_load((project / "params.yaml").read_text())["train"]["optimizer"]["name"] == "adamw"


def test_parrotflow_params_accepts_nothing_that_cannot_be_built(project: Path) -> None:
    before = (project / "params.yaml").read_text(encoding="utf-8")

    said = parrotflow_params(project, "train.model.hidden_size=-64")

    assert said.returncode == 2
    assert "cannot build `qwen3`" in said.stderr
    assert "params.yaml was not changed" in said.stderr
    assert (project / "params.yaml").read_text(encoding="utf-8") == before


def test_a_value_of_another_stage_asks_nothing_of_the_model(project: Path) -> None:
    said = parrotflow_params(project, "evaluate.stride=90")

    assert "model: " not in said.stdout
    assert yaml.safe_load((project / "params.yaml").read_text())["evaluate"]["stride"] == 90


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that can train here. Its store has 40 documents of web and 20 of books."""
    write_project(tmp_path, lambda number: "books" if number % 3 == 0 else "web")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARROTFLOW_STAGES_TO_DO", raising=False)
    return tmp_path


def asked(project: Path, monkeypatch: pytest.MonkeyPatch, *words: str, **changes: Any) -> None:
    """The command, for the small project's parameters with some values changed."""
    write_params(project, **changes)
    monkeypatch.setattr(sys, "argv", ["forecast", *words])
    main()


def test_a_state_that_cannot_fit_is_refused_with_the_numbers_and_what_to_change(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecast, "device_memory", lambda _: 10_000)
    with pytest.raises(UserError, match=r"weights .* of 10 kB for each process; shard the model over several GPUs"):
        asked(small, monkeypatch, "--check")
    assert re.search("memory: weights .* of 10 kB in the process", capsys.readouterr().out)
    asked(small, monkeypatch)
    assert "here it would be refused: train: the run cannot fit" in capsys.readouterr().out


def test_of_a_model_that_another_stage_may_still_make_nothing_is_known(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(small, monkeypatch, "--check", start_from="pretrained")
    assert "no forecast before the model is here: params.yaml: train.start_from" in capsys.readouterr().out

    with pytest.raises(UserError, match="no such folder"):
        asked(small, monkeypatch, start_from="pretrained")


def test_a_folder_of_weights_that_are_not_here_is_refused_before_the_run(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (small / "pretrained").mkdir()
    (small / "pretrained/model.safetensors").write_bytes(LFS_POINTER + b"oid sha256:4d7a\nsize 12345\n")

    with pytest.raises(UserError, match="Git LFS pointer"):
        asked(small, monkeypatch, "--check", start_from="pretrained")


@pytest.mark.parametrize("to_do", ["code tokenize train", None])
def test_of_data_that_is_still_to_be_made_nothing_is_known(
    small: Path, monkeypatch: pytest.MonkeyPatch, to_do: str | None
) -> None:
    write_params(small, mixture={"weights": {"web": 0.5, "books": 0.5}, "phases": []})

    def said() -> list[str]:
        return [line.split(":")[1] for line in lines_of_tokens(read_section("train", TrainParams))]

    assert said() == [" books", " web"]
    if to_do:
        monkeypatch.setenv("PARROTFLOW_STAGES_TO_DO", to_do)
    else:
        (small / "data/tokens/train/manifest.json").unlink()

    assert said() == [" not known before the tokens are made"]


def test_the_vocabulary_is_that_of_the_tokens_if_they_were_made_by_these_parameters(small: Path) -> None:
    """The tokenizer may have stopped before the size that was asked for."""
    asked_for = {"tokenizer": {"kind": "bpe", "vocabulary_size": 4096}}
    lock = {"stages": {"tokenizer": {"params": {"params.yaml": {"tokenizer": asked_for["tokenizer"]}}}}}
    (small / "dvc.lock").write_text(yaml.safe_dump(lock), encoding="utf-8")
    assert vocabulary_of(asked_for).vocab_size == 300
    assert vocabulary_of({"tokenizer": {"kind": "bpe", "vocabulary_size": 2048}}).vocab_size == 2048
    other = vocabulary_of({"tokenizer": {"kind": "characters"}})
    assert (other.vocab_size, other.tokens) == (300, 0), "not known before they are made"


def test_a_training_that_was_stopped_names_its_step_and_its_speed(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"max_steps": 6, "checkpoint_every_steps": 6}
    asked(small, monkeypatch, "--check", **changes)
    assert "checkpoint: " not in capsys.readouterr().out

    run_workers(small, 1, stopped_at(3), EXIT_CONTINUE)
    asked(small, monkeypatch, "--check", **changes)

    said = capsys.readouterr().out
    assert "checkpoint: continues at step 3 of 6\n" in said
    assert read_json(small / "reports/train_speed.json")["tokens_per_second"] > 0
