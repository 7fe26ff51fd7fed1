"""What is measured of a text without running it, and how the page shades its tokens."""

import math

import pytest

from stages.evaluate.generate.generator import Generated
from stages.evaluate.generate.report import ShadedToken, repeated_share, shaded_tokens
from stages.evaluate.generate.texts import Text


@pytest.mark.parametrize(
    ("ids", "share"), [([], 0), ([1, 2, 3], 0), ([1, 2, 3, 4], 0), ([1] * 8, 4 / 5), ([1, 2, 3, 4] * 2, 1 / 5)]
)
def test_the_share_of_4_grams_that_occurred_before(ids: list[int], share: float) -> None:
    assert repeated_share(ids) == pytest.approx(share)


def text(shown: str, pieces: list[str], likelihoods: list[float], skipped: int = 0) -> Text:
    written = Generated(0, "".join(pieces), "stop", [0] * len(pieces), pieces, likelihoods)
    return Text("problem", "a/1", 0, "prompt", shown, f"prompt{shown}", written, skipped, "text")


def test_tokens_are_cut_at_the_ends_of_the_text_that_was_kept() -> None:
    tokens, rest = shaded_tokens(text("  x = 1\n", ["\n  ", "x", " = ", "1\n\n", "stop"], [-1.0, -2, -3, -4, -5], 1))

    assert tokens == [
        ShadedToken("  ", 1, -1.0),
        ShadedToken("x", 1, -2.0),
        ShadedToken(" = ", 2, -3.0),
        ShadedToken("1\n", 2, -4.0),
    ]
    assert rest == ""


def test_an_end_of_line_that_was_added_is_no_token() -> None:
    assert shaded_tokens(text("x\n", ["x", ""], [0.0, -1.0])) == ([ShadedToken("x", 0, 0.0)], "\n")
    assert shaded_tokens(text("\n", [""], [-1.0])) == ([], "\n")


def test_a_character_of_several_tokens_is_as_likely_as_all_of_them() -> None:
    assert shaded_tokens(text("ä.", ["", "ä", "."], [-3.0, -4.0, -0.5])) == (
        [ShadedToken("ä", 4, -7.0), ShadedToken(".", 0, -0.5)],
        "",
    )


@pytest.mark.parametrize(
    ("probability", "shade"), [(1, 0), (0.5, 0), (0.49, 1), (0.1, 1), (0.09, 2), (0.009, 3), (0.0009, 4)]
)
def test_the_less_likely_the_more_shades(probability: float, shade: int) -> None:
    ((token,), _) = shaded_tokens(text("x", ["x"], [math.log(probability)]))

    assert token.shade == shade
