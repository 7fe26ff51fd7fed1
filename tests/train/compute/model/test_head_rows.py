"""Training with a part of the output matrix: the loss is the written-out formula, and the draws have their chances."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from stages.formats.tokens import TokenStore
from stages.runtime.errors import UserError
from stages.train.compute.model import head_rows as module
from stages.train.compute.model.build import build_model
from stages.train.compute.model.flops import flops_per_token
from stages.train.compute.model.head_rows import (
    DrawnRows,
    HeadRows,
    head_rows,
    probabilities,
    sampled_cross_entropy,
    token_counts,
)
from stages.train.compute.model.loss import CausalLoss
from stages.train.params import TrainParams
from tests.formats.test_tokens import write_store
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import params

VOCABULARY = 40
COUNTS = np.array([1000 // (id + 1) for id in range(VOCABULARY)])


def inputs(width: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states of three sequences, the output matrix, and targets of which some repeat within a sequence."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(3, 9, width, requires_grad=True), torch.randn(VOCABULARY, width, requires_grad=True)
    return hidden, weight, torch.randint(0, 12, (3, 9))


def drawn(count: int, step: int = 0) -> DrawnRows:
    return HeadRows(0, probabilities(COUNTS, count)).draw(step, torch.device("cpu"))


def written_out(hidden: Tensor, weight: Tensor, targets: Tensor, rows: DrawnRows) -> Tensor:
    """The loss target by target, with the softmax's sum as a sum over ids."""
    chance = dict(zip(rows.ids.tolist(), rows.log_probabilities.exp().tolist(), strict=True))
    total = torch.zeros((), dtype=torch.float64)
    for states, wanted in zip(hidden.double(), targets.tolist(), strict=True):
        for state, target in zip(states, wanted, strict=True):
            logits = weight.double() @ state
            parts = [logits[id].exp() / (1 if id in wanted else chance[id]) for id in chance.keys() | set(wanted)]
            total = total + torch.stack(parts).sum().log() - logits[target]
    return total


@pytest.mark.parametrize("count", [1, 7, 25, VOCABULARY])
def test_the_loss_and_its_gradients_are_those_of_the_formula(count: int) -> None:
    hidden, weight, targets = inputs()
    ours = sampled_cross_entropy(hidden, weight, targets, drawn(count), torch.float32)
    exact = written_out(hidden, weight, targets, drawn(count))
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=0)
    pairs = zip(*(torch.autograd.grad(loss, (hidden, weight)) for loss in (ours, exact)), strict=True)
    for own, true in pairs:
        torch.testing.assert_close(own, true, rtol=1e-4, atol=1e-5)


def test_with_all_rows_it_is_the_whole_loss() -> None:
    hidden, weight, targets = inputs()
    whole = functional.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten(), reduction="sum")
    assert drawn(VOCABULARY).log_probabilities.tolist() == [0] * VOCABULARY
    torch.testing.assert_close(sampled_cross_entropy(hidden, weight, targets, drawn(VOCABULARY), torch.float32), whole)


def test_the_softmax_sum_is_right_on_average_over_steps() -> None:
    """For a sequence without targets of its own in the sum, so that all of it is drawn."""
    logits = torch.randn(VOCABULARY, generator=torch.manual_seed(0))
    sums = [
        (logits[rows.ids] - rows.log_probabilities).exp().sum() for rows in (drawn(8, step) for step in range(4000))
    ]
    assert torch.stack(sums).mean().item() == pytest.approx(logits.exp().sum().item(), rel=0.02)


@pytest.mark.parametrize("count", [1, 8, 39])
def test_rows_are_drawn_once_each_with_their_probability(count: int) -> None:
    chances, found = probabilities(COUNTS, count), np.zeros(VOCABULARY)
    assert chances.sum() == pytest.approx(count)
    assert (np.diff(chances) <= 1e-12).all()
    assert 0 < chances.min() <= chances.max() <= 1 + 1e-12
    for step in range(2000):
        ids = drawn(count, step).ids
        assert len(set(ids.tolist())) == len(ids) == count
        found[ids] += 1
    assert np.abs(found / 2000 - chances).max() < 0.05


def test_draws_follow_from_seed_and_step() -> None:
    chances = probabilities(COUNTS, 8)
    first, again, other_step, other_seed = (
        HeadRows(seed, chances).draw(step, torch.device("cpu")).ids.tolist()
        for seed, step in ((0, 3), (0, 3), (0, 4), (1, 3))
    )
    assert first == again
    assert first != other_step
    assert first != other_seed


def test_a_long_store_is_counted_in_spans_spread_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TokenStore(write_store(tmp_path / "store", [[[1] * 499, [2] * 499]]))
    assert token_counts(store, 300)[:5].tolist() == [2, 499, 499, 0, 0]
    monkeypatch.setattr(module, "SPANS", 4)
    monkeypatch.setattr(module, "SPAN_TOKENS", 100)
    counted = token_counts(store, 300)[:5].tolist()
    assert counted[1] == pytest.approx(counted[2], abs=2)
    assert sum(counted) == 400


def loss_of(model: dict[str, Any], **changes: Any) -> CausalLoss:
    values = TrainParams.model_validate(params(model=model, head_rows=20, **changes))
    return CausalLoss(build_model(values, vocabulary()), values)


@pytest.mark.parametrize("name", ["mixtral", "qwen3", "gpt2"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_sequence_has_the_same_loss_in_any_micro_batch(name: str, precision: str) -> None:
    """With routers, a tied and an untied output matrix; without drawn rows it is the whole loss."""
    ours = loss_of(MODELS[name], precision=precision)
    ids = torch.arange(68).reshape(4, 17) * 37 % 300
    rows = HeadRows(0, np.full(320, 20 / 320)).draw(0, torch.device("cpu"))
    batch, targets = ids[:, :-1], ids[:, 1:]
    together = ours(batch, targets, drawn=rows)
    apart = [ours(one, wanted, drawn=rows) for one, wanted in zip(batch.split(1), targets.split(1), strict=True)]
    torch.testing.assert_close(torch.stack(apart).sum(0), together, rtol=1e-2 if precision == "bf16" else 1e-5, atol=0)
    assert together[0] != ours(batch, targets)[0]


def test_a_model_whose_logits_are_more_than_the_product_is_refused() -> None:
    with pytest.raises(UserError, match=r"train.head_rows = 20: the logits of `phi` are not its output matrix times"):
        loss_of({"model_type": "phi", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2})


def test_a_matrix_of_no_more_rows_is_used_whole(tmp_path: Path) -> None:
    store, values = (
        TokenStore(write_store(tmp_path / "store", [[[1, 2, 3]]])),
        TrainParams.model_validate(params(head_rows=320)),
    )
    assert head_rows(values, store, 320) is None
    assert head_rows(TrainParams.model_validate(params()), store, 320) is None
    found = head_rows(values, store, 384)
    assert found is not None
    assert found.probabilities.sum() == pytest.approx(320)


def test_the_flops_are_what_torch_counts_and_those_of_attention_and_norms() -> None:
    """torch does not count the attention of this training."""
    ours, ids = loss_of(MODELS["llama"]), torch.arange(32)[None]
    with FlopCounterMode(display=False) as counter:
        ours(ids, ids, drawn=HeadRows(0, np.full(320, 20 / 320)).draw(0, torch.device("cpu"))).sum().backward()

    norms = sum(parameter.numel() for parameter in ours.parameters() if parameter.dim() == 1)
    attention = 12 * 2 * 16 * 32
    assert flops_per_token(ours.model, 32, 20) - 6 * norms - attention == counter.get_total_flops() / 32
    assert flops_per_token(ours.model, 32, 288) == flops_per_token(ours.model, 32)
