from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from stages.evaluate.likelihood.score import score_documents
from stages.evaluate.model import open_model
from stages.formats.tokens import TokenStore


def one_token_at_a_time(
    model: PreTrainedModel, store: TokenStore, number: int, context_length: int, stride: int
) -> float:
    """The definition, without batches, padding or shared windows: each token under its own context."""
    read = [store.manifest.eos_id, *store.document(number).tolist()]
    nats = 0.0
    for position in range(len(read) - 1):
        steps = max(0, -(-(position + 1 - context_length) // stride))
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([read[steps * stride : position + 1]])).logits[0, -1]
        nats -= float(torch.log_softmax(logits.double(), -1)[read[position + 1]])
    return nats


SIZES: dict[str, Any] = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.5}


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=16, n_layer=2, n_head=2, **SIZES))


def llama() -> PreTrainedModel:
    shape: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(max_position_embeddings=32, **shape, **SIZES))


@pytest.mark.parametrize("architecture", [gpt2, llama])
@pytest.mark.parametrize(("context_length", "stride"), [(32, 24), (20, 20), (16, 1)])
def test_the_loss_is_that_of_each_token_under_its_own_context(
    project: Path, architecture: Callable[[], PreTrainedModel], context_length: int, stride: int
) -> None:
    torch.manual_seed(1)
    model = architecture().eval()
    store = TokenStore(project / "data/tokens/validation")

    nats = score_documents(model, store, context_length, stride, batch_size=5)

    assert store.document_lengths.max() > 32
    assert len(nats) == store.manifest.documents
    for number in (0, store.manifest.documents - 1):
        assert nats[number] == pytest.approx(
            one_token_at_a_time(model, store, number, context_length, stride), rel=1e-5
        )


def test_the_result_does_not_hang_on_the_batch_size(project: Path) -> None:
    store = TokenStore(project / "data/tokens/validation")
    model = open_model(project / "model")

    alone = score_documents(model, store, 32, 24, batch_size=1)
    together = score_documents(model, store, 32, 24, batch_size=1000)

    np.testing.assert_allclose(alone, together, rtol=1e-6)
