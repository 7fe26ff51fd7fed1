"""The forecast as a command, where `parrotflow` asks for it, and which runs it refuses before other stages run."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.runtime.entry import UserError
from stages.runtime.section import read_section
from stages.train import forecast
from stages.train.commands.forecast import main, mixture_lines
from stages.train.commands.forecast import vocabulary as vocabulary_of
from stages.train.params import TrainParams
from tests.small_project import ROOT
from tests.train.small_run import environment, write_params, write_project

LARGE = {
    **{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 4},
    **{"num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 4096},
}
"""Four layers of Llama 3 70B's: 3.4 billion parameters."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the real parameters and presets."""
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


def parrotflow_params(project: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "flows.cli", "params", *words, "--yes"]
    return subprocess.run(command, cwd=project, env=environment(), check=False, capture_output=True, text=True)


def test_parrotflow_params_says_what_the_training_of_what_it_composed_costs(project: Path) -> None:
    said = parrotflow_params(project, "optimizer=adamw", "train.max_steps=2000")

    assert said.returncode == 0, said.stderr
    assert "model: 666,240 parameters, 3.01 MFLOPs per token; 4,096,000 tokens in 2,000 steps" in said.stdout
    assert "memory: weights " in said.stdout
    assert yaml.safe_load((project / "params.yaml").read_text())["train"]["optimizer"]["name"] == "adamw"


def test_parrotflow_params_accepts_nothing_that_cannot_be_built(project: Path) -> None:
    before = (project / "params.yaml").read_text(encoding="utf-8")

    said = parrotflow_params(project, "train.model.hidden_size=-64")

    assert said.returncode == 2
    assert "cannot build `qwen3`" in said.stderr
    assert "params.yaml is left as it was" in said.stderr
    assert (project / "params.yaml").read_text(encoding="utf-8") == before


def test_a_value_of_another_stage_asks_nothing_of_the_model(project: Path) -> None:
    said = parrotflow_params(project, "evaluate.bootstrap_resamples=900")

    assert "model: " not in said.stdout
    assert yaml.safe_load((project / "params.yaml").read_text())["evaluate"]["bootstrap_resamples"] == 900


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that can train on a machine of 25 GB. Its store has 40 documents of web and 20 of books."""
    write_project(tmp_path, lambda number: "books" if number % 3 == 0 else "web")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(forecast, "device_memory", lambda _: 25_000_000_000)
    monkeypatch.delenv("PARROTFLOW_STAGES_TO_DO", raising=False)
    return tmp_path


def asked(project: Path, monkeypatch: pytest.MonkeyPatch, *words: str, **changes: Any) -> None:
    """The command, for the small project's parameters with some values changed."""
    write_params(project, **changes)
    monkeypatch.setattr(sys, "argv", ["forecast", *words])
    main()


def test_a_model_that_is_too_large_for_the_machine_is_refused_by_its_numbers(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as refused:
        asked(small, monkeypatch, "--check", model=LARGE)

    assert (
        "memory: weights 13.7 GB + gradients 13.7 GB + optimizer 13.7 GB = 41.2 GB of 25 GB" in capsys.readouterr().out
    )
    assert " of 25 GB for each process; shard the model over several GPUs" in str(refused.value)


def test_what_is_composed_for_another_machine_is_not_refused_here(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecast, "device_memory", lambda _: 10_000)
    asked(small, monkeypatch)
    assert "here it would be refused: train: the run cannot fit" in capsys.readouterr().out


def test_of_a_model_that_another_stage_may_still_make_nothing_is_known(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(small, monkeypatch, "--check", start_from="pretrained")
    assert "no forecast before the model is here: params.yaml: train.start_from" in capsys.readouterr().out

    with pytest.raises(UserError, match="no such folder"):
        asked(small, monkeypatch, start_from="pretrained")


@pytest.mark.parametrize("to_do", ["code tokenize train", None])
def test_of_data_that_is_still_to_be_made_nothing_is_known(
    small: Path, monkeypatch: pytest.MonkeyPatch, to_do: str | None
) -> None:
    write_params(small, mixture={"weights": {"web": 0.5, "books": 0.5}, "phases": []})

    def said() -> list[str]:
        return [line.split(":")[1] for line in mixture_lines(read_section("train", TrainParams))]

    assert said() == [" books", " web"]
    if to_do:
        monkeypatch.setenv("PARROTFLOW_STAGES_TO_DO", to_do)
    else:
        (small / "data/tokens/train/manifest.json").unlink()

    assert said() == [" not known before the tokens are made"]


def test_the_pipeline_asks_before_other_stages_run_and_where_it_says_what_would_run() -> None:
    flow = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]["train"]["meta"]["flow"]

    assert flow["check"] == {"command": "python -m stages.train.commands.forecast --check"}


def test_the_vocabulary_is_that_of_the_tokens_if_they_were_made_by_these_parameters(small: Path) -> None:
    """The tokenizer may have stopped before the size that was asked for."""
    asked_for = {"tokenizer": {"kind": "bpe", "vocabulary_size": 4096}}
    lock = {"stages": {"tokenizer": {"params": {"params.yaml": {"tokenizer": asked_for["tokenizer"]}}}}}
    (small / "dvc.lock").write_text(yaml.safe_dump(lock), encoding="utf-8")
    assert vocabulary_of(asked_for).vocab_size == 300
    assert vocabulary_of({"tokenizer": {"kind": "bpe", "vocabulary_size": 2048}}).vocab_size == 2048
