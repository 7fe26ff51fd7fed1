"""What the card's head says of the corpus."""

import pytest
from huggingface_hub import ModelCardData

from stages.card.inputs import data_sets_of

COMMIT = "a" * 40
HUB = {"kind": "hub", "repository": "codeparrot/codeparrot-clean", "revision": COMMIT}


@pytest.mark.parametrize(
    ("sources", "named"),
    [
        ([{"kind": "packages", "names": ["click"]}], []),
        ([HUB, HUB | {"configuration": "x"}, {"kind": "files"}], ["codeparrot/codeparrot-clean"]),
        ([HUB | {"repository": "corpus/folder", "revision": ""}], []),
    ],
)
def test_the_data_sets_of_the_hub_are_named_once_and_no_other_source(
    sources: list[dict[str, object]], named: list[str]
) -> None:
    assert data_sets_of(sources) == named


def test_a_card_of_no_data_set_has_no_empty_field() -> None:
    assert "datasets" not in ModelCardData(datasets=data_sets_of([]) or None).to_yaml()
