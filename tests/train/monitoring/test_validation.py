"""The held-out loss while a model trains."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from torch import Tensor

from stages.train.monitoring.validation import Validation
from stages.train.params import TrainParams
from tests.train.small_run import documents, params, write_project, write_store


class NatPerToken(torch.nn.Module):
    """Loses one nat for each target."""

    def forward(self, inputs: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        return torch.tensor([targets.numel(), 0.0])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer.json of a project."""
    return write_project(tmp_path_factory.mktemp("project")) / "data/tokenizer/tokenizer.json"


def held_out(folder: Path, tokenizer: Path, sources: str, **changes: Any) -> Validation:
    """Measures `NatPerToken` on documents of these sources, a letter each, in rows of 16 tokens, 3 at once."""
    store = write_store(
        folder, documents(len(sources), seed=1), Tokenizer.from_file(str(tokenizer)), tokenizer, lambda i: sources[i]
    )
    section = TrainParams.model_validate(params(sequence_length=16, evaluation_sequences=1000, **changes))
    return Validation(section, Accelerator(cpu=True), store, NatPerToken(), 3)


def test_a_held_out_source_is_measured_by_itself_on_the_sequences_that_are_its_text_alone(
    tmp_path: Path, tokenizer: Path
) -> None:
    validation = held_out(tmp_path / "store", tokenizer, "a" * 6 + "b" * 6 + "c")
    of_a = [chunk for chunk in validation.chunks if chunk.source == "a"]

    measured = validation.measure()

    assert measured.loss == 1.0
    # Document c is too short for a curve of its own; one row is the end of a and the beginning of b.
    assert measured.by_source.keys() == {"a", "b"}
    tokens, size = sum(16 * len(chunk.rows) for chunk in of_a), sum(chunk.bytes for chunk in of_a)
    assert measured.by_source["a"] == pytest.approx(tokens / math.log(2) / size)
    assert sum(len(chunk.rows) for chunk in validation.chunks) == validation.index.rows
    text = sum(len(text.encode()) for text in documents(13, seed=1))
    assert sum(chunk.bytes for chunk in validation.chunks) == pytest.approx(text, rel=0.02)  # the rest is no whole row


def test_one_held_out_source_has_no_second_curve(tmp_path: Path, tokenizer: Path) -> None:
    assert held_out(tmp_path / "store", tokenizer, "a" * 6).measure().by_source == {}
