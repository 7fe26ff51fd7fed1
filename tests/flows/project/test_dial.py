"""`parrotflow params compute=...`, as a user types it."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.project.compose import composed_with_dial, option
from stages.runtime.entry import UserError
from tests.small_project import ROOT
from tests.train.small_run import environment


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the real parameters and presets."""
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_difference_and_the_law_are_shown_and_the_recipe_is_written(project: Path) -> None:
    before = (project / "params.yaml").read_text(encoding="utf-8")
    # Words before the dial count for it, words after it win over it.
    words = ["train.sequence_length=128", "compute=1000", "train.seed=3", "train.schedule.warmup_steps=7"]
    command = [sys.executable, "-m", "flows.cli", "params", *words, "--yes"]

    said = subprocess.run(command, env=environment(), check=False, capture_output=True, text=True)

    assert said.returncode == 0, said.stderr
    for part in ("-  max_steps: 1790", "dial: 1,000 TFLOP: width", "rows of 128 tokens", "extrapolated", "1 PFLOPs"):
        assert part in said.stdout
    written = (project / "params.yaml").read_text(encoding="utf-8")
    train, default = yaml.safe_load(written)["train"], yaml.safe_load(before)["train"]
    assert (train["seed"], train["schedule"]["warmup_steps"]) == (3, 7)
    assert train["model"]["max_position_embeddings"] == 128
    assert train["model"]["hidden_size"] > default["model"]["hidden_size"]
    assert "# optimizer steps" in written


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("compute=20", ["--tflop", "20"]),
        ("compute=1e3", ["--tflop", "1e3"]),
        ("compute=90s", ["--seconds", "90.0"]),
        ("compute=10min", ["--seconds", "600.0"]),
        ("compute=1.5h", ["--seconds", "5400.0"]),
    ],
)
def test_compute_is_a_number_of_tflop_or_a_time(word: str, expected: list[str]) -> None:
    assert option(word) == expected


@pytest.mark.parametrize("text", ["fast", "-1", "0", "0min", "10 min", "10m", "10TFLOP", "1e99", "nan", ""])
def test_anything_else_is_refused_before_anything_is_computed(project: Path, text: str) -> None:
    with pytest.raises(UserError) as refused:
        composed_with_dial([f"compute={text}"])

    expected = "expected TFLOP, such as compute=20, or a time, such as compute=10min (s, min, h)"
    assert str(refused.value) == f"compute={text}: {expected}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compute"], "compute: expected TFLOP"),
        (["compute=1", "compute=2"], "compute=1 compute=2: give compute once"),
        (["computed=1"], "computed=1: no such group"),
        (["compute=1", "model=gpt5", "compute=2"], "give compute once"),
    ],
)
def test_words_that_cannot_be_read_are_named(project: Path, words: list[str], message: str) -> None:
    with pytest.raises(UserError) as refused:
        composed_with_dial(words)

    assert message in str(refused.value)
