"""A mistake ends the run before any worker starts, with one message that says what to do."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from stages.formats.tokens import TokenStore
from stages.runtime.entry import UserError
from stages.train import __main__ as stage
from stages.train.launcher import check_store
from stages.train.params import TrainParams
from tests.train.small_run import params, write_params, write_project


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that could run."""
    return write_project(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def project(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to spoil, as the current folder; no worker may start."""
    folder = Path(shutil.copytree(inputs, tmp_path / "project"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "cpu")

    def refuse(config: object) -> int:
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
            {"max_step": 5},
            "params.yaml: train.max_step: unknown parameter (value 5); correct its name or remove it",
        ),
        (
            {"optimizer__adamw_learning_rate": 3.0},
            "params.yaml: train.optimizer.adamw_learning_rate = 3.0: Input should be less than or equal to 1",
        ),
        (
            {"model__model_type": "gpt9"},
            "params.yaml: train.model.model_type = 'gpt9': no such architecture in transformers; "
            "e.g. gpt2, llama, qwen3, gpt_neox",
        ),
        (
            {"model__n_layers": 3},
            "params.yaml: train.model.n_layers: no such field in the config of `gpt2`",
        ),
        (
            {"model__n_layer": "many"},
            "params.yaml: train.model: StrictDataclassFieldValidationError: Validation error for field 'n_layer': "
            "TypeError: Field 'n_layer' expected int, got str (value: 'many')",
        ),
        (
            {"model__n_head": 3},
            "params.yaml: train.model: cannot build `gpt2` with these fields: ValueError: `embed_dim` must be "
            "divisible by num_heads (got `embed_dim`: 16 and `num_heads`: 3).",
        ),
        (
            {"model__activation_function": "gellu"},
            "params.yaml: train.model: cannot build `gpt2` with these fields: KeyError: 'gellu'",
        ),
        (
            {"sequence_length": 64},
            "params.yaml: train.sequence_length = 64: the model has 32 positions; "
            "lower it, or raise the model's n_positions / max_position_embeddings",
        ),
        (
            {"deterministic_micro_batch_size": 3},
            "params.yaml: train.deterministic_micro_batch_size = 3: train.global_batch_size = 8 must be 1, 2, 4, 8, "
            "... times that",
        ),
        (
            {"export_steps": [4, 13]},
            "params.yaml: train.export_steps = [4, 13]: 13 is beyond train.max_steps = 12; remove it or train longer",
        ),
        (
            {"start_from": "model/step-00000003"},
            "params.yaml: train.start_from = 'model/step-00000003': model/ is what this stage writes, "
            "and DVC deletes it first; copy the model elsewhere",
        ),
        (
            {"start_from": "openai-community/gpt2"},
            "params.yaml: train.start_from = 'openai-community/gpt2': no such folder; a model of the Hub is named "
            "owner/name@COMMIT, with all 40 digits of the commit",
        ),
        (
            {"trackers": ["mlflow"]},
            "params.yaml: train.trackers: `mlflow` is not installed; `pip install mlflow`, or take it off the list",
        ),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(project: Path, change: dict[str, Any], expected: str) -> None:
    write_params(project, **change)
    assert message() == expected


def test_more_processes_than_sequences_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "cpu_2")
    write_params(project, global_batch_size=1)
    assert message() == (
        "params.yaml: train.global_batch_size = 1: deploy/launch/cpu_2.yaml starts 2 processes, and each takes the "
        "same number of sequences; use a multiple, or start fewer processes"
    )


def test_fewer_tokens_than_one_sequence_are_refused(project: Path) -> None:
    write_params(project, sequence_length=20_000, model__n_positions=20_000)
    assert "tokens are fewer than one sequence (train.sequence_length = 20000)" in message()


def test_a_token_store_of_another_tokenizer_is_refused(project: Path) -> None:
    file = project / "data/tokenizer/tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert message() == "data/tokens/train: made with another tokenizer than data/tokenizer; run `dvc repro tokenize`"


def test_an_unknown_launch_preset_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_LAUNCH", "tpu")
    said = message()
    assert said.startswith("PARROTFLOW_LAUNCH=tpu: no such file, and no preset (there are cpu, cpu_2, ")


def test_a_library_of_another_version_is_refused(project: Path) -> None:
    (project / "requirements.lock").write_text("torch==1.0.0\n", encoding="utf-8")
    assert message().startswith("torch: requirements.lock says 1.0.0, found ")


def test_the_projects_own_params_fit_the_model_of_the_section() -> None:
    assert params().keys() == stage.TrainParams.model_fields.keys()


@pytest.mark.parametrize(("split", "raises_share"), [("train", False), ("validation", True)])
def test_a_split_shorter_than_one_row_names_the_parameters_that_help(
    tmp_path: Path, split: str, raises_share: bool
) -> None:
    project = write_project(tmp_path / "project")
    store = TokenStore(project / "data/tokens" / split)
    values = TrainParams.model_validate(params(sequence_length=10**6))
    with pytest.raises(UserError) as refused:
        check_store(store, values, project / "data/tokenizer")
    assert "are fewer than one sequence (train.sequence_length = 1000000); lower it, " in str(refused.value)
    assert str(refused.value).endswith("or raise clean.split.validation_share") == raises_share
