"""`train.start_from`: which models may be continued, and what identifies them."""

import json
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import Dropout
from transformers import AutoConfig, AutoModelForCausalLM

from stages.runtime.errors import EXIT_UNAVAILABLE, UserError
from stages.train.checkpoint.identity import source_sha256
from stages.train.compute.model.build import build_config, build_model
from stages.train.compute.model.loss import CausalLoss
from stages.train.compute.model.source import set_special_ids
from stages.train.compute.parallel import full_weights
from stages.train.export import plain_model, save_model
from stages.train.params import TrainParams
from stages.train.planned import model_without_weights
from tests.hub_client import with_short_waits
from tests.train.models import GROUPED, vocabulary
from tests.train.small_run import copy_of, params, run, run_workers, start, write_params, write_project

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a trained model, which lies outside of `model/`."""
    folder = write_project(tmp_path_factory.mktemp("trained"), max_steps=2)
    run_workers(folder, 1)
    (folder / "model").rename(folder / "base")
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path) -> Path:
    """A project that continues it."""
    folder = copy_of(trained, tmp_path / "project")
    write_params(folder, max_steps=2, start_from="base")
    return folder


def test_a_hub_that_does_not_answer_ends_the_run_with_the_code_for_a_retry(project: Path) -> None:
    write_params(project, start_from=f"owner/name@{COMMIT}")
    variables = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(project)}
    said = run(project, EXIT_UNAVAILABLE, partial(start, command=with_short_waits("stages.train")), **variables)
    assert f"error: params.yaml: train.start_from = 'owner/name@{COMMIT}': the Hub does not answer: " in said
    assert "Traceback" not in said


def test_training_goes_on_from_a_given_model(trained: Path, project: Path) -> None:
    run_workers(project, 1)
    losses = [
        float(line.split("\t")[1])
        for folder in (trained, project)
        for line in (folder / "reports/curves/training_loss.tsv").read_text(encoding="utf-8").splitlines()[1:]
    ]
    assert len(losses) == 4
    assert losses[2] < losses[0]


def refusal(project: Path) -> str:
    """What is said of the base."""
    with chdir(project), pytest.raises(UserError) as refused:
        build_model(TrainParams.model_validate(params(start_from="base")), vocabulary())
    return str(refused.value)


def test_a_folder_with_pickled_weights_alone_is_refused(project: Path) -> None:
    torch.save(load_file(project / "base/model.safetensors"), project / "base/pytorch_model.bin")
    (project / "base/model.safetensors").unlink()
    assert refusal(project) == (
        "params.yaml: train.start_from = 'base': holds no *.safetensors; pickled weights are not loaded, as they can "
        "run code"
    )


def test_code_in_a_models_folder_is_not_run(project: Path) -> None:
    (project / "base/own.py").write_text(f"open({str(project / 'ran')!r}, 'w')\n", encoding="utf-8")
    config = json.loads((project / "base/config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (project / "base/config.json").write_text(json.dumps(config))
    assert "train.start_from = 'base': cannot be loaded: " in refusal(project)
    assert not (project / "ran").exists()


def test_a_model_with_another_tokenizer_ends_texts_as_the_tokens_do_and_can_be_saved(tmp_path: Path) -> None:
    ids = {"pad_token_id": 500, "bos_token_id": 502, "eos_token_id": [501, 7]}
    config = AutoConfig.for_model("llama", **GROUPED, vocab_size=512, **ids)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    (tmp_path / "base/generation_config.json").write_text('{"temperature": 0.6}')  # refused by save_pretrained
    values = TrainParams.model_validate(params(start_from=str(tmp_path / "base"), model={}))
    loss = CausalLoss(build_model(values, vocabulary()), values)
    (tmp_path / "model").mkdir()

    save_model(plain_model(loss, full_weights(loss.model), vocabulary()), tmp_path / "model")

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for written in (model.config, model.generation_config):
        assert (written.bos_token_id, written.eos_token_id, written.pad_token_id) == (0, 0, 0)
    config = AutoConfig.for_model("codegen")  # has no padding token
    set_special_ids(config, vocabulary())
    assert config.eos_token_id == 0


def test_the_fields_of_train_model_change_the_model_that_is_continued(project: Path) -> None:
    with chdir(project):
        values = TrainParams.model_validate(params(start_from="base", model={"resid_pdrop": 0.25}))
        assert build_config(values, vocabulary()).resid_pdrop == 0.25
        assert {one.p for one in build_model(values, vocabulary()).modules() if isinstance(one, Dropout)} == {0.0, 0.25}


@pytest.mark.parametrize("fields", [{"model_type": "llama"}, {"no_such_field": 1}])
def test_fields_that_the_model_does_not_have_are_refused(project: Path, fields: dict[str, Any]) -> None:
    values = TrainParams.model_validate(params(start_from="base", model=fields))
    with (
        chdir(project),
        pytest.raises(UserError, match=rf"train\.model\.{next(iter(fields))}: .*set train\.model to \{{\}}"),
    ):
        build_config(values, vocabulary())


def test_a_model_that_lacks_a_weight_is_refused_before_the_run(project: Path) -> None:
    with chdir(project):
        weights = load_file("base/model.safetensors")
        del weights["transformer.h.1.ln_1.weight"]
        save_file(weights, "base/model.safetensors", {"format": "pt"})
        with pytest.raises(
            UserError, match=r"start_from = 'base': weights are missing: transformer\.h\.1\.ln_1\.weight$"
        ):
            model_without_weights(TrainParams.model_validate(params(start_from="base", model={})), vocabulary())


def test_a_run_is_identified_by_the_weights_and_the_config_of_its_source(project: Path) -> None:
    with chdir(project):
        before, weights = source_sha256("base"), load_file("base/model.safetensors")
        Path("base/generation_config.json").write_text(json.dumps({"max_new_tokens": 5}), encoding="utf-8")
        assert source_sha256("base") == before
        save_file({name: value * 1.5 for name, value in weights.items()}, "base/model.safetensors", {"format": "pt"})
        assert source_sha256("base") != before


def test_a_model_that_transformers_refuses_to_save_ends_the_run_with_one_message(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=1, vocab_size=9))
    model.generation_config.temperature = 0.7
    with pytest.raises(UserError, match=r"train: transformers cannot save the trained model: .*temperature"):
        save_model(model, tmp_path)


def test_the_weights_can_be_read_by_whom_the_umask_allows(trained: Path) -> None:
    modes = {(trained / "base" / name).stat().st_mode for name in ("model.safetensors", "config.json")}
    assert len(modes) == 1
