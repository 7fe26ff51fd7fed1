"""One document measured as the stage does: facts and the features of each filter."""

from typing import Any

from stages.clean.facts import facts_of
from stages.clean.features import measures
from stages.clean.filtering import DocumentText, Feature
from stages.clean.params import Filters
from tests.small_project import SECTIONS, document


def features_of(text: str, path: str = "a.py", source: str = "s", **filters: Any) -> dict[str, Feature]:
    """The row of the ledger, with some parameters of the filters changed."""
    found = measures(Filters.model_validate(SECTIONS["clean"]["filters"] | filters))
    read = DocumentText(text)
    features = facts_of(document(text, source, path), read)
    for measure in found.values():
        features |= measure(read)
    return features
