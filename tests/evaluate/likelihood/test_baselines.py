"""Models to compare with: each reads the same documents by its own tokenizer."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from stages.evaluate.__main__ import main
from stages.evaluate.likelihood.check import main as check
from stages.evaluate.likelihood.documents import WindowSizes, validation_split
from stages.evaluate.likelihood.score import ScoredModel, baseline_models, require_finite
from stages.formats.documents import CLEAN, read_documents, read_table
from stages.formats.evaluation.report import DOCUMENT_LOSSES
from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json, write_json
from stages.formats.tokens import VALIDATION
from stages.runtime import hub
from stages.runtime.errors import UserError
from tests.trained_project import write_sections


def evaluated(project: Path, **changes: Any) -> dict[str, Any]:
    write_sections(project, **changes)
    main()
    report: dict[str, Any] = read_json(project / "reports/evaluate.json")
    return report


def write_byte_model(folder: Path) -> None:
    """A model of bytes, with a shorter context than the trained one."""
    vocabulary = {token: number for number, token in enumerate(["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(str(folder))
    size = {"vocab_size": len(vocabulary), "n_positions": 20, "n_embd": 8, "n_layer": 1, "n_head": 1}
    GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)


def test_learned_positions_that_the_training_did_not_reach_are_not_scored(project: Path) -> None:
    """Earlier versions published models with such positions."""
    (project / "model/training.json").write_text('{"sequence_length": 16}')

    assert evaluated(project)["receipt"]["models"]["model"]["context_length"] == 16
    with pytest.raises(UserError, match=r"context_length = 20: the model reads at most 16 tokens.*; lower it"):
        evaluated(project, evaluate__context_length=20)


def test_windows_that_are_longer_than_the_sequences_of_a_continued_model_are_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights may have been trained at all positions before."""
    (project / "model/training.json").write_text('{"sequence_length": 16, "start_from": "base"}')

    evaluated(project, evaluate__context_length=20)
    assert "windows of 20 tokens, but was trained on sequences of 16" in capsys.readouterr().out
    evaluated(project, evaluate__context_length=16)
    assert "note: " not in capsys.readouterr().out


def test_a_model_with_another_tokenizer_is_compared_in_bits_per_byte_of_the_same_documents(project: Path) -> None:
    write_byte_model(project / "bytes")

    report = evaluated(project, evaluate__baselines=["bytes"])

    table = read_table(DOCUMENT_LOSSES).to_pandas()
    ours, theirs = (table[table.model == name].reset_index() for name in ("model", "bytes"))
    assert list(ours.id) == list(theirs.id)
    assert list(theirs.tokens) == list(theirs.bytes + 1)
    compared = report["compared"]["bytes"]
    assert compared["bits_per_byte"] == pytest.approx(theirs.nats.sum() / theirs.bytes.sum() / math.log(2), rel=1e-5)
    assert compared["bits_per_byte"] == pytest.approx(8.0, abs=0.2)  # log2 257: it has learned nothing
    assert compared["difference"] == pytest.approx(report["bits_per_byte"] - compared["bits_per_byte"], abs=1e-4)
    receipt = report["receipt"]["models"]
    assert receipt["bytes"] == {
        "revision": None,
        "context_length": 20,
        "stride": 15,
        "weights_sha256": weights_sha256(project / "bytes"),
    }
    assert receipt["model"]["weights_sha256"] == weights_sha256(project / "model")


def test_a_tokenizer_that_loses_text_is_said_and_marks_the_figure(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It drops each "1", so it needs fewer bits: "x1" and "x" are one text to it."""
    file = project / "model/tokenizer.json"
    losing = {"normalizer": {"type": "Replace", "pattern": {"String": "1"}, "content": ""}}
    write_json(file, read_json(file) | losing)

    report = evaluated(project)

    texts = [document.text for document in read_documents(project / "data/clean/validation")]
    share = sum("1" in text for text in texts) / len(texts)
    assert report["lost_share"] == pytest.approx(share, abs=1e-4)
    assert share > 0
    said = f"{share:.1%} of the documents of validation change when encoded and decoded: the tokenizer of model "
    assert f"note: {said}" in capsys.readouterr().out
    assert said in read_json(project / "reports/evaluate.json")["receipt"]["convention"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"evaluate__baselines": ["nowhere"]},
            "evaluate.baselines: nowhere: no such folder; a model of the Hub is named owner/name@COMMIT, with all "
            "40 digits of the commit",
        ),
        (
            {"evaluate__baselines": ["data"]},
            "evaluate.baselines: data: holds no *.safetensors; pickled weights are not loaded, as they can run code",
        ),
    ],
)
def test_what_is_no_model_is_refused_by_its_own_parameter(project: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        evaluated(project, **changes)
    assert str(caught.value) == f"params.yaml: {message}"


def test_a_folder_that_lacks_a_weight_is_refused_before_the_run(project: Path) -> None:
    write_byte_model(project / "bytes")
    write_sections(project, evaluate__baselines=["bytes", "to/be/made"])
    check()

    weights = project / "bytes/model.safetensors"
    save_file({name: value for name, value in load_file(weights).items() if "ln_f" not in name}, weights)

    with pytest.raises(UserError, match=r"^bytes: weights are missing: transformer\.ln_f\.bias, "):
        check()


def test_a_model_that_does_not_know_an_id_of_its_tokenizer_is_refused(project: Path) -> None:
    with pytest.raises(UserError, match=r"^model: its tokenizer has the id \d+, the model 5 ids$"):
        ScoredModel("model", Path("model"), WindowSizes(8, 6), 5).tokens(validation_split(CLEAN / VALIDATION))


def test_a_baseline_whose_loss_is_not_finite_is_refused_by_its_own_parameter() -> None:
    remedy = "remove it from evaluate.baselines"
    with pytest.raises(UserError, match=f"^base: the loss of 1 of 2 .* is not a finite number: {remedy}$"):
        require_finite(np.array([1.0, np.nan]), ScoredModel("base", Path("base"), WindowSizes(8, 6), 300))


def test_a_baseline_of_the_hub_is_a_commit_and_nothing_that_moves(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = ScoredModel("model", Path("model"), WindowSizes(32, 24), 300)
    fetched = []

    def snapshot(_: str, repository: str, commit: str, *__: Any, **___: Any) -> Path:
        fetched.append((repository, commit))
        return project / "model"

    monkeypatch.setattr(hub, "snapshot", snapshot)

    (model,) = baseline_models([f"me/base@{'a' * 40}"], trained)

    assert fetched == [("me/base", "a" * 40)]
    assert (model.revision, model.folder) == ("a" * 40, project / "model")
    with pytest.raises(UserError, match="baselines: me/base@main: no such folder; a model of the Hub is named"):
        baseline_models(["me/base@main"], trained)
