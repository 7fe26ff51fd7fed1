"""The auxiliary loss of a mixture of experts is transformers' own of each sequence, or the model is refused."""

from typing import Any

import pytest
import torch

from stages.runtime.entry import UserError
from stages.train.data.batches import IGNORED
from stages.train.model.build import build_config, build_model
from stages.train.model.loss import CausalLoss
from stages.train.params import TrainParams
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import params

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


@pytest.mark.parametrize("name", MIXTURES)
def test_the_sum_and_its_gradients_do_not_depend_on_the_micro_batch(name: str) -> None:
    def summed(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        ours = loss_of(MODELS[name])
        losses = [ours(part[:, :-1], part[:, 1:], part[:, 1:]) for part in IDS.split(size)]
        torch.stack(losses).sum().backward()
        gradients = [parameter.grad.flatten() for parameter in ours.parameters() if parameter.grad is not None]
        return torch.stack(losses).sum(0), torch.cat(gradients)

    (together, gradient), (alone, gradient_alone) = summed(4), summed(1)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, gradient_alone, rtol=1e-3, atol=1e-5)


def test_inputs_without_a_target_do_not_count() -> None:
    ours = loss_of(MODELS["mixtral"])
    inputs, targets = IDS[:1, :-1], IDS[:1, 1:].clone()
    targets[:, 10:] = IGNORED
    padded = ours(inputs, targets, inputs)
    torch.testing.assert_close(padded, ours(inputs[:, :10], targets[:, :10], inputs[:, :10]), rtol=1e-5, atol=1e-5)


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
