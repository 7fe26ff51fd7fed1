"""A score of quality by a classifier that was trained on labelled documents (`parrotflow data quality`)."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field

from stages.clean.filtering import DocumentText, Drop, Feature, Features, Filter, Measure, Share, below
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError
from stages.runtime.section import Section


class QualitySettings(Section):
    """Which classifier, and what it drops. Without a minimum the column is there and nothing is dropped."""

    model: Annotated[str, Field(min_length=1)]
    """The file that `parrotflow data quality` wrote. List it under `deps` of the stage in dvc.yaml too, so that a
    change is noticed."""
    minimum: Share | None
    """Drop a document with a lower score. 0.5: as likely bad as good, if both were equally many."""


class Quality(Filter):
    """Column `quality`: the probability that a document is like the good ones."""

    quality: QualitySettings | None
    """A score by a classifier of your own; null measures nothing."""

    @classmethod
    def measurement(cls, parameters: Self) -> Measure | None:
        """As `Filter.measurement`; what is measured depends on the content of the model's file."""
        if parameters.quality is None:
            return None
        path = Path(parameters.quality.model)
        try:
            return partial(score, str(path), file_sha256(path))
        except OSError as error:
            raise UserError(
                f"params.yaml: clean.filters.quality.model: {path} cannot be read ({error.strerror}); train it with "
                "`parrotflow data quality`, or set clean.filters.quality to null"
            ) from None

    def drops(self, features: Features, seed: int) -> Iterator[Drop]:
        """As `Filter.drops`."""
        if self.quality is not None:
            yield from below(features, "quality", self.quality.minimum)


def score(path: str, sha256: str, text: DocumentText) -> dict[str, Feature]:
    """The score of a document by the classifier in a file with that sha256."""
    from stages.clean.classifier import read_classifier  # slow, and the parameters are checked without it

    return {"quality": read_classifier(Path(path), sha256).score(text.text)}
