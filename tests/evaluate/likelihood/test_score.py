import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import current_thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
)

from stages.evaluate import side_by_side
from stages.evaluate.bootstrap import Floats
from stages.evaluate.likelihood import score
from stages.evaluate.likelihood.documents import Tokens, stored_tokens
from stages.evaluate.likelihood.score import Scorer, score_batches
from stages.evaluate.likelihood.windows import ScoringPlan, WindowSizes
from stages.evaluate.model import open_model
from stages.formats.tokens import TokenStore


def one_token_at_a_time(
    model: PreTrainedModel, store: TokenStore, number: int, context_length: int, stride: int
) -> Iterator[tuple[int, float]]:
    """The definition, without batches, padding or shared windows: each token under its own context.

    Gives how many tokens of its window come before what the model reads last, and the token's nats.
    """
    read = [store.manifest.eos_id, *store.document(number).tolist()]
    for position in range(len(read) - 1):
        start = stride * max(0, -(-(position + 1 - context_length) // stride))
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([read[start : position + 1]])).logits[0, -1]
        yield position - start, -float(torch.log_softmax(logits.double(), -1)[read[position + 1]])


SIZES: dict[str, Any] = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.5}


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=16, n_layer=2, n_head=2, **SIZES))


SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **SIZES))


def phi() -> PreTrainedModel:
    """Its logits have a bias, so they are left to transformers."""
    model = PhiForCausalLM(PhiConfig(**SHAPE, **SIZES))
    torch.nn.init.normal_(model.lm_head.bias)
    return model


@pytest.mark.parametrize("architecture", [gpt2, llama, phi])
@pytest.mark.parametrize(("context_length", "stride"), [(32, 24), (20, 20), (16, 1)])
def test_the_loss_is_that_of_each_token_under_its_own_context(
    project: Path, architecture: Callable[[], PreTrainedModel], context_length: int, stride: int
) -> None:
    torch.manual_seed(1)
    model = architecture().eval()
    store = TokenStore(project / "data/tokens/validation")
    chosen = (0, store.manifest.documents - 1)
    documents = [store.document(number) for number in chosen]
    lengths = np.array([len(document) for document in documents])
    plan = ScoringPlan(
        Tokens(np.concatenate(documents), lengths, store.manifest.eos_id), WindowSizes(context_length, stride), 5
    )

    losses = score_batches(model, plan)

    assert lengths.max() > 32
    defined = [list(one_token_at_a_time(model, store, number, context_length, stride)) for number in chosen]
    assert plan.document_nats(losses) == pytest.approx([sum(nats for _, nats in found) for found in defined], rel=1e-5)
    at_position = np.zeros((2, context_length))  # of so small a context each position is a bucket
    for position, nats in itertools.chain.from_iterable(defined):
        at_position[:, position] += (nats, 1)
    found_nats, found_tokens = plan.position_losses(losses)
    np.testing.assert_allclose(found_nats, at_position[0], rtol=1e-5)
    np.testing.assert_array_equal(found_tokens, at_position[1])


def document_nats(model: PreTrainedModel, plan: ScoringPlan) -> Floats:
    return plan.document_nats(score_batches(model, plan))


def test_the_result_does_not_hang_on_the_batch_size(project: Path) -> None:
    store = TokenStore(project / "data/tokens/validation")
    model = open_model(project / "model")

    alone = document_nats(model, ScoringPlan(stored_tokens(store), WindowSizes(32, 24), 1))
    together = document_nats(model, ScoringPlan(stored_tokens(store), WindowSizes(32, 24), 1000))

    np.testing.assert_allclose(alone, together, rtol=1e-6)


def test_the_result_is_the_same_to_the_bit_for_any_number_of_threads(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ScoringPlan(stored_tokens(TokenStore(project / "data/tokens/validation")), WindowSizes(32, 24), 2)
    model = open_model(project / "model")
    scored_by: set[str] = set()
    scored = Scorer.token_losses

    def seen(*of: Any) -> torch.Tensor:
        scored_by.add(current_thread().name)
        time.sleep(0.005)  # so that one thread does not score all these small batches
        return scored(*of)

    monkeypatch.setattr(Scorer, "token_losses", seen)
    found = {}
    for threads in (1, 3):
        for module in (score, side_by_side):
            monkeypatch.setattr(module, "cores_of", lambda _, threads=threads: threads)
        scored_by.clear()
        found[threads] = score_batches(model, plan)
        assert (len(scored_by) > 1) == (threads > 1)

    assert len(plan.batches) > 5
    np.testing.assert_array_equal(found[1].windows, found[3].windows)
    np.testing.assert_array_equal(found[1].positions, found[3].positions)


def test_cores_share_a_product_where_memory_has_no_room_for_a_batch_of_each(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ScoringPlan(stored_tokens(TokenStore(project / "data/tokens/validation")), WindowSizes(32, 24), 2)
    seen: set[int] = set()
    scored = Scorer.token_losses
    monkeypatch.setattr(Scorer, "token_losses", lambda *of: seen.add(torch.get_num_threads()) or scored(*of))
    for module in (score, side_by_side):
        monkeypatch.setattr(module, "cores_of", lambda _: 4)
    monkeypatch.setattr(side_by_side.psutil, "virtual_memory", lambda: SimpleNamespace(total=1000))

    score_batches(open_model(project / "model"), plan)

    assert seen == {4}
