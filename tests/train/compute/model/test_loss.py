"""The loss in chunks of tokens is the loss over all logits, for every head that it is used with.

The auxiliary loss of a mixture of experts is transformers' own of each sequence, or the model is refused.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from stages.formats.tokens import Manifest
from stages.runtime.errors import UserError
from stages.train.compute.model import cross_entropy as module
from stages.train.compute.model.build import build_config, build_model
from stages.train.compute.model.cross_entropy import linear_cross_entropy
from stages.train.compute.model.loss import CausalLoss
from stages.train.params import TrainParams
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import params

SHAPE = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}
HEADS: dict[str, tuple[dict[str, Any], bool]] = {
    "gpt2, tied": ({"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16}, True),
    "llama, untied": ({"model_type": "llama", **SHAPE, "tie_word_embeddings": False}, True),
    "gemma2, capped logits": ({"model_type": "gemma2", **SHAPE, "head_dim": 8}, False),
    "granite, scaled logits": ({"model_type": "granite", **SHAPE, "logits_scaling": 8.0}, False),
    "phi, a bias": ({"model_type": "phi", **SHAPE}, False),
}


def drawn(seed: int, tokens: int, vocabulary: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    hidden, weight = torch.randn(tokens, width), torch.randn(vocabulary, width)
    targets = torch.randint(0, vocabulary, (tokens,))
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = functional.linear(hidden, weight)
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return functional.cross_entropy(logits, targets, reduction="sum")


def gradients(loss: Tensor, *of: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss * 0.1, of))


@settings(max_examples=50)
@given(
    seed=st.integers(0, 1000),
    tokens=st.integers(1, 70),
    vocabulary=st.integers(1, 30),
    width=st.integers(1, 6),
)
def test_loss_and_gradients_are_those_over_all_logits(seed: int, tokens: int, vocabulary: int, width: int) -> None:
    hidden, weight, targets = drawn(seed, tokens, vocabulary, width)
    ours = linear_cross_entropy(hidden, weight, targets, torch.float32)
    exact = plain(hidden.double(), weight.double(), targets)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
    for own, true in zip(gradients(ours, hidden, weight), gradients(exact.float(), hidden, weight), strict=True):
        torch.testing.assert_close(own, true.float(), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        measured = linear_cross_entropy(hidden, weight, targets, torch.float32)
    torch.testing.assert_close(measured, ours.detach(), rtol=1e-6, atol=1e-6)


def test_in_bf16_it_is_no_further_from_the_truth_than_the_usual_way() -> None:
    hidden, weight, targets = drawn(0, 1000, 200, 16)
    exact = gradients(plain(hidden.double(), weight.double(), targets), hidden, weight)
    ours = gradients(linear_cross_entropy(hidden, weight, targets, torch.bfloat16), hidden, weight)
    usual = gradients(plain(hidden.bfloat16(), weight.bfloat16(), targets), hidden, weight)
    for own, other, true in zip(ours, usual, exact, strict=True):
        assert (own - true).norm() <= 1.05 * (other - true).norm()


def test_nothing_as_large_as_the_logits_is_kept_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_PER_WIDTH", {torch.bfloat16: 1, torch.float32: 1})
    hidden, weight, targets = drawn(0, 512, 256, 8)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        linear_cross_entropy(hidden, weight, targets, torch.bfloat16).backward()
    assert kept
    assert max(kept) == hidden.numel() < 512 * 256


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_only_a_plain_head_is_taken_apart_and_all_have_the_loss_of_their_logits(name: str, precision: str) -> None:
    fields, is_plain = HEADS[name]
    values = TrainParams.model_validate(params(model=fields, precision=precision))
    model = build_model(values, Manifest("uint16", 64, 0, "", "", ()))
    loss_of = CausalLoss(model, values)
    assert loss_of.plain_head is is_plain
    assert model.training
    model.eval()  # without dropout
    torch.manual_seed(0)
    inputs, targets = torch.randint(0, 64, (2, 4, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        logits = model(input_ids=inputs, use_cache=False).logits
    wanted = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(loss_of(inputs, targets, torch.zeros_like(inputs))[0], wanted, rtol=1e-5, atol=0)


MIXTURES = ("mixtral", "qwen3_moe", "gpt_oss", "jamba")
IDS = torch.arange(68).reshape(4, 17) * 37 % 300


def loss_of(model: dict[str, Any]) -> CausalLoss:
    values = TrainParams.model_validate(params(model=model))
    return CausalLoss(build_model(values, vocabulary()), values)


@pytest.mark.parametrize("name", MIXTURES)
def test_both_losses_are_those_that_transformers_adds_up_for_each_sequence(name: str) -> None:
    ours = loss_of(MODELS[name])
    inputs, targets = IDS[:, :-1], IDS[:, 1:]
    rows = zip(inputs.split(1), targets.split(1), strict=True)
    theirs = [ours.model(input_ids=row, labels=wanted, shift_labels=wanted) for row, wanted in rows]

    losses = ours(inputs, targets, torch.zeros_like(inputs)) / targets.numel()

    torch.testing.assert_close(losses.sum(), torch.stack([each.loss for each in theirs]).mean(), rtol=0, atol=1e-5)
    assert losses[1].item() == pytest.approx(0.05 * sum(each.aux_loss.item() for each in theirs) / 4, abs=1e-6)


def test_a_model_that_asks_for_none_has_none() -> None:
    ours = loss_of(MODELS["mixtral"] | {"output_router_logits": False, "router_aux_loss_coef": 0.0})
    assert ours(IDS[:, :-1], IDS[:, 1:], IDS)[1].item() == 0


def test_one_that_cannot_be_had_is_refused() -> None:
    """deepseek_v4 hashes the tokens of its first layers to experts; jetmoe names its coefficient otherwise."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_key_value_heads": 1}
    fields = {"model_type": "jetmoe", "kv_channels": 8, "num_local_experts": 4, "output_router_logits": True} | sizes
    with pytest.raises(UserError, match="output_router_logits: the auxiliary loss of `jetmoe` is not one that"):
        loss_of(fields)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"output_router_logits": False},
            "train.model.router_aux_loss_coef = 0.05: without effect; set train.model.output_router_logits: true",
        ),
        ({"router_z_loss_coef": 0.1}, "train.model.router_z_loss_coef = 0.1: this training adds no such loss"),
    ],
)
def test_a_coefficient_without_effect_is_refused(changes: dict[str, Any], said: str) -> None:
    values = TrainParams.model_validate(params(model=MODELS["mixtral"] | changes))
    with pytest.raises(UserError, match=said):
        build_config(values, vocabulary())
