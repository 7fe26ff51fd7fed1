"""What a step of the batched generator asks of the host, where a GPU would be waited for; and how tokens are drawn."""

import numpy as np
import pytest
import torch

from stages.evaluate.generate import rows
from stages.evaluate.generate.rows import log_probabilities, sample_tokens
from stages.runtime.errors import UserError

LOGITS = torch.log(torch.tensor([0.1, 0.5, 0.15, 0.25]))


@pytest.mark.parametrize(
    ("temperature", "top_p", "expected"),
    [
        (1.0, 1.0, [0.1, 0.5, 0.15, 0.25]),
        (1.0, 0.5, [0, 1, 0, 0]),
        (1.0, 0.7, [0, 2 / 3, 0, 1 / 3]),
        (0.5, 1.0, np.array([0.01, 0.25, 0.0225, 0.0625]) / 0.345),
        (0.0, 1.0, [0, 1, 0, 0]),
    ],
)
def test_tokens_are_drawn_from_the_nucleus_in_proportion(
    temperature: float, top_p: float, expected: list[float]
) -> None:
    uniforms = np.random.default_rng(0).random(20_000)

    drawn = sample_tokens(LOGITS.expand(len(uniforms), 4), temperature, top_p, uniforms)

    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / len(drawn), expected, atol=0.015)


@pytest.mark.parametrize("top_p", [0.3, 0.95, 0.999999])
@pytest.mark.parametrize("spread", [0.1, 5.0])
def test_a_nucleus_of_any_size_is_the_one_of_a_full_sort(top_p: float, spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(16, 2000, generator=generator) * spread
    uniforms = np.random.default_rng(1).random(16)

    drawn = sample_tokens(logits, 0.8, top_p, uniforms)

    for row, token in enumerate(drawn):
        probabilities = torch.softmax(logits[row : row + 1] / 0.8, dim=-1)[0]
        ordered, ids = probabilities.sort(descending=True, stable=True)
        cumulative = np.cumsum(ordered.numpy(), dtype=np.float64)
        kept = int(np.searchsorted(cumulative, top_p)) + 1
        place = int(np.searchsorted(cumulative[:kept], uniforms[row] * cumulative[:kept][-1], side="right"))
        assert token == int(ids[place])
        assert [token] == sample_tokens(logits[row : row + 1], 0.8, top_p, uniforms[row : row + 1])


@pytest.mark.parametrize("top_p", [0.3, 0.999999])
def test_a_gpu_draws_the_same_from_the_same_probabilities(monkeypatch: pytest.MonkeyPatch, top_p: float) -> None:
    logits = torch.randn(16, 2000, generator=torch.Generator().manual_seed(0)).round(decimals=1)  # many are equal
    uniforms = np.random.default_rng(1).random(16)
    drawn = sample_tokens(logits, 0.8, top_p, uniforms)

    most_likely = rows._most_likely
    monkeypatch.setattr(rows, "_most_likely", lambda *of, on_host: most_likely(*of, on_host=False))

    assert sample_tokens(logits, 0.8, top_p, uniforms) == drawn


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1, 0)])
def test_the_ends_of_the_random_numbers_draw_a_token_of_the_nucleus(uniform: float) -> None:
    for top_p in (0.6, 1.0):
        (token,) = sample_tokens(LOGITS[None], 1.0, top_p, np.array([uniform]))
        assert token == {(0.0, 0.6): 1, (0.0, 1.0): 0}.get((uniform, top_p), 3)


def test_equally_likely_tokens_are_equally_often_drawn() -> None:
    uniforms = np.random.default_rng(0).random(20_000)
    logits = torch.tensor([1.0, 2.0, 1.0, 2.0, 2.0, -9.0]).expand(len(uniforms), 6)

    drawn = sample_tokens(logits, 1.0, 0.75, uniforms)

    np.testing.assert_allclose(np.bincount(drawn, minlength=6) / len(drawn), [0, 1 / 3, 0, 1 / 3, 1 / 3, 0], atol=0.015)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_refused(value: float) -> None:
    logits = torch.zeros(2, 8)
    logits[1, 3] = value

    for temperature in (0.0, 1.0):
        with pytest.raises(UserError, match="the model's output is NaN or infinite"):
            sample_tokens(logits, temperature, 1.0, np.array([0.5, 0.5]))


def test_a_temperature_too_low_for_float32_takes_the_most_likely_token() -> None:
    assert sample_tokens(LOGITS[None], 1e-40, 1.0, np.array([0.99])) == [1]


def test_a_token_is_as_likely_as_the_model_says_whatever_its_draw_was_limited_to() -> None:
    logits = LOGITS.expand(3, 4) + torch.tensor([[0.0], [5.0], [-7.0]])  # a constant changes no probability

    assert log_probabilities(logits, [0, 1, 3]) == [round(float(np.log(share)), 3) for share in (0.1, 0.5, 0.25)]
    assert str(log_probabilities(torch.tensor([[0.0, 99.0]]), [1])) == "[0.0]"
