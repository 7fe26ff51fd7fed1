"""What a token may look at: its row, or its document."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from transformers.integrations import flex_attention as flex

from stages.formats.tokens import TokenStore
from stages.runtime.errors import UserError
from stages.train.compute.data.rows import Rows, pack_rows, read_rows
from stages.train.compute.model.attention import UNMASKED
from stages.train.compute.model.build import build_model
from stages.train.compute.model.documents import use_flex_attention
from stages.train.compute.model.loss import CausalLoss
from stages.train.export import save_model
from stages.train.params import TrainParams
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import params, write_project

GPT2, LLAMA = MODELS["gpt2"], MODELS["llama"]
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": 4}
MAMBA = {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}


def loss_of(model: dict[str, Any], attention: str, precision: str = "fp32") -> CausalLoss:
    values = TrainParams.model_validate(
        params(sequence_length=32, model=model, attention=attention, precision=precision)
    )
    return CausalLoss(build_model(values, vocabulary()), values).eval()


def tensors(batch: Rows) -> list[torch.Tensor]:
    return [torch.from_numpy(part) for part in (batch.inputs, batch.targets, batch.positions)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return TokenStore(write_project(tmp_path_factory.mktemp("project")) / "data/tokens/train")


@settings(max_examples=20)
@given(sequence_length=st.integers(2, 300))
def test_positions_begin_at_0_with_each_row_and_document_and_else_go_on(
    store: TokenStore, sequence_length: int
) -> None:
    index = pack_rows(store, sequence_length)
    if not index.rows:
        return
    batch = read_rows(store, index, np.arange(min(index.rows, 40)), sequence_length)
    first_tokens = set(store.document_starts.tolist())
    for row, positions in enumerate(batch.positions):
        column = 0
        for start, length in index.spans(row):
            expected = 0
            for place in range(start, start + length):
                expected = 0 if place == start or place in first_tokens else expected + 1
                assert positions[column] == expected
                column += 1


@pytest.mark.parametrize("model", [GPT2, LLAMA, MISTRAL])
def test_a_packed_row_gives_the_losses_of_its_documents_alone(model: dict[str, Any], store: TokenStore) -> None:
    loss = loss_of(model, "document")
    index = pack_rows(store, 32)
    all_rows = read_rows(store, index, np.arange(index.rows), 32)
    row = int((all_rows.positions == 0).sum(axis=1).argmax())
    inputs, targets, positions = tensors(read_rows(store, index, np.array([row]), 32))
    starts = [*torch.nonzero(positions[0] == 0).flatten().tolist(), 32]
    assert len(starts) > 2

    together = loss(inputs, targets, positions)[0]

    alone = [loss(inputs[:, a:b], targets[:, a:b], positions[:, a:b])[0] for a, b in pairwise(starts)]
    assert together.item() == pytest.approx(sum(part.item() for part in alone), rel=1e-5)
    assert together.item() != pytest.approx(loss_of(model, "causal")(inputs, targets)[0].item(), rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("model", [LLAMA, MISTRAL])
def test_flex_attention_gives_the_losses_that_the_mask_gives(
    model: dict[str, Any], store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU; here without its kernel, and without the compiler that makes its mask."""
    loss = loss_of(model, "document")
    batch = tensors(read_rows(store, pack_rows(store, 32), np.arange(4), 32))
    masked = loss(*batch)
    use_flex_attention(loss.model)
    assert loss.model.config._attn_implementation == "flex_attention"
    monkeypatch.setattr(flex, "compile_friendly_flex_attention", without_a_kernel)

    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(loss(*batch), masked, rtol=1e-5, atol=0)


def without_a_kernel(*tensors: torch.Tensor, training: bool, **options: Any) -> Any:
    return flex_attention(*tensors, **options)


def test_a_model_that_drops_out_scores_of_attention_keeps_the_mask() -> None:
    model = loss_of(GPT2 | {"attn_pdrop": 0.1}, "document").model
    use_flex_attention(model)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("model", [GPT2, LLAMA])
def test_attention_without_a_mask_is_transformers_own_causal_attention(model: dict[str, Any]) -> None:
    ours = loss_of(model, "causal").model
    ids = torch.arange(24).reshape(2, 12)
    assert ours.config._attn_implementation == UNMASKED
    logits = ours(input_ids=ids).logits
    ours.set_attn_implementation("eager")

    torch.testing.assert_close(logits, ours(input_ids=ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{"model_type": "doge", "keep_window_size": 4}, MISTRAL | {"sliding_window": 16}])
def test_a_model_whose_mask_is_no_plain_triangle_keeps_it(changes: dict[str, Any]) -> None:
    """doge masks keys by their values; without its mask it would not even be causal."""
    assert loss_of(LLAMA | changes, "causal").model.config._attn_implementation == "sdpa"


def test_a_model_that_cannot_keep_documents_apart_is_refused() -> None:
    with pytest.raises(UserError, match=r"train.attention = document: `mamba` cannot keep .* apart"):
        loss_of(MAMBA, "document")


def test_the_model_folder_names_no_attention_of_ours(tmp_path: Path) -> None:
    save_model(loss_of(GPT2, "document").model, tmp_path)
    assert "attn_implementation" not in (tmp_path / "config.json").read_text()
