"""From compute, or a time on this machine, to values of params.yaml."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.formats.tokens import Manifest
from stages.runtime.errors import UserError
from stages.runtime.launch import LaunchConfig
from stages.runtime.section import check_section, read_params_file
from stages.train.commands import dial as command
from stages.train.commands.dial import Dial, of_packages
from stages.train.params import TrainParams
from tests.small_project import ROOT
from tests.train.small_run import params as train_params
from tests.train.small_run import write_project

VOCABULARY = Manifest("uint16", 32768, 0, "", "", ())
ALONE = LaunchConfig(Path("deploy/launch/cpu.yaml"), processes=1, machines=1, on_cpu=True, sharded=False)


def dial(corpus_tokens: int | None = None) -> Dial:
    values = read_params_file(ROOT / "params.yaml")["train"]
    return Dial(check_section("train", values, TrainParams), VOCABULARY, corpus_tokens)


def test_what_was_measured_and_what_is_extrapolated_is_said() -> None:
    within, beyond = "\n".join(dial().for_flops(1e12)[1]), "\n".join(dial().for_flops(1e15)[1])

    assert "1 is within it" in within
    assert "so this is extrapolated" not in within
    assert "outside of it, so this is extrapolated" in beyond
    assert "not tokenized yet, so its repetition is not counted" in within
    other = Dial(dial().params, Manifest("uint16", 4096, 0, "", "", ()), None)
    assert "here they are 4,096 and 256, so this is extrapolated" in "\n".join(other.for_flops(1e12)[1])


def test_the_epochs_over_the_corpus_are_counted_and_said() -> None:
    recipe, lines = dial(corpus_tokens=50_000).for_flops(1e12)

    assert f"corpus: {recipe.tokens:,} tokens of a corpus of 50,000 ({recipe.tokens / 50_000:.2f} epochs)" in lines
    assert "more text would help" in lines[-1]
    assert "more text" not in "\n".join(dial(corpus_tokens=recipe.tokens).for_flops(1e12)[1])
    assert recipe.model.width >= dial().for_flops(1e12)[0].model.width


def test_too_little_compute_is_refused() -> None:
    with pytest.raises(UserError, match=r"1 GFLOP are too few for 20 steps of the smallest model"):
        dial().for_flops(1e9)


def test_a_model_that_is_continued_has_no_size_to_choose() -> None:
    params = dial().params.model_copy(update={"start_from": "gpt2"})

    with pytest.raises(UserError, match=r"set train\.start_from: null"):
        Dial(params, VOCABULARY, None)


def test_a_time_is_turned_into_operations_by_steps_that_are_timed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TIMING_SECONDS", 0.05)

    _, lines = dial().for_seconds(2000)

    assert any("of training steps at" in line and "measured now with this model on" in line for line in lines)


def test_the_corpus_is_what_the_mixture_reads_of_the_tokens_and_only_if_they_are_of_these_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path / "project", source_of=lambda number: "rare" if number % 10 == 0 else "common")
    monkeypatch.chdir(project)
    values: dict[str, Any] = {"collect": {"max_bytes": 1}, "train": train_params()}
    Path("params.yaml").write_text(yaml.safe_dump(values))
    rare = {"weights": {"rare": 1.0}, "phases": []}

    def tokens(**changes: object) -> int | None:
        return command.tokens_of_corpus(values, check_section("train", train_params(**changes), TrainParams))

    every, own = tokens(), tokens(mixture=rare)
    assert every is not None
    assert own is not None
    assert 0.05 * every < own < 0.15 * every

    # params.yaml asks for another corpus than the one that the tokens were made of.
    made_of = {"params.yaml": {"collect": {"max_bytes": 2}}}
    Path("dvc.lock").write_text(yaml.safe_dump({"stages": {"collect": {"params": made_of}}}))
    assert tokens() is None
    values["collect"]["max_bytes"] = 2
    assert tokens() == every

    # The card is of an earlier corpus: it has not run since.
    of_card = {"params.yaml": {"collect.max_bytes": 3}}
    Path("dvc.lock").write_text(
        yaml.safe_dump({"stages": {"collect": {"params": made_of}, "card": {"params": of_card}}})
    )
    assert tokens() == every


def test_the_law_promises_no_loss_for_a_corpus_of_another_kind() -> None:
    other = Dial(dial().params, VOCABULARY, None, is_python=of_packages({"collect": {"sources": [{"kind": "files"}]}}))
    _, lines = other.for_flops(1e12)
    assert not any("bits per byte" in line for line in lines)
    assert any(line.startswith("law: ") and line.endswith("predicts no loss for your corpus") for line in lines)
