from pathlib import Path

import numpy as np
import pytest
import torch

from stages.evaluate.generate import draw, generate, sample_tokens
from stages.evaluate.model import open_model, open_tokenizer

LOGITS = np.log(np.array([0.1, 0.5, 0.15, 0.25]))


def shares(temperature: float, top_p: float) -> list[float]:
    generator = np.random.default_rng(0)
    drawn = [draw(LOGITS, temperature, top_p, generator) for _ in range(20_000)]
    return [drawn.count(token) / len(drawn) for token in range(4)]


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
    np.testing.assert_allclose(shares(temperature, top_p), expected, atol=0.015)


def test_the_cache_changes_nothing_and_positions_that_run_out_go_on_from_the_later_half(project: Path) -> None:
    model = open_model(project / "model")
    torch.nn.init.normal_(next(model.get_input_embeddings().parameters()), std=1.0)
    prompt = [0, 5, 9, 200, 30]

    tokens = list(sample_tokens(model, prompt, 60, 0, 1.0, np.random.default_rng(0)))

    read, expected = prompt, []
    for _ in range(60):
        if len(read) > 32:
            read = read[-16:]
        with torch.inference_mode():
            expected.append(int(model(torch.tensor([read])).logits[0, -1].argmax()))
        read = [*read, expected[-1]]
    assert tokens == expected


def test_a_prompt_longer_than_the_positions_is_read_from_its_end(project: Path) -> None:
    model = open_model(project / "model")
    long = list(range(1, 100))

    cut = list(sample_tokens(model, long[-32:], 5, 0.8, 0.9, np.random.default_rng(1)))

    assert list(sample_tokens(model, long, 5, 0.8, 0.9, np.random.default_rng(1))) == cut


def test_the_same_seed_gives_the_same_text_and_another_one_another(project: Path) -> None:
    model, tokenizer = open_model(project / "model"), open_tokenizer(project / "model")

    def text(seed: int) -> str:
        pieces = generate(model, tokenizer, "def f(", max_new_tokens=20, temperature=1.0, top_p=1.0, seed=seed)
        return "".join(pieces)

    assert text(3) == text(3)
    assert text(3) != text(4)


def test_the_name_of_a_special_token_in_a_prompt_is_text(project: Path) -> None:
    tokenizer = open_tokenizer(project / "model")

    assert tokenizer.eos_token_id not in tokenizer.backend_tokenizer.encode("<|endoftext|>").ids


def test_an_id_that_the_tokenizer_does_not_know_is_never_drawn(project: Path) -> None:
    model = open_model(project / "model")

    drawn = set(sample_tokens(model, [0], 200, 1.0, 1.0, np.random.default_rng(0), vocabulary=20))

    assert max(drawn) < 20
    assert len(drawn) > 5
