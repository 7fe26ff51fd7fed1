"""The name of a published model, its destination, and the conditions of publishing."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from stages.runtime.section import Section


class GateParams(Section):
    """Conditions on the evaluation. If one does not hold, nothing is published."""

    bits_per_byte_at_most: Annotated[float, Field(gt=0)] | None
    """Limit on the held-out split; null sets none."""
    allow_worse: bool
    """Whether `main` may move to a model with more bits per byte than the one it leads to now, or to one that was
    evaluated on other held-out documents."""
    tolerance: Annotated[float, Field(ge=0)]
    """In bits per byte: a model that is worse by no more than this counts as equal."""


RepositoryName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]{0,95}$")]
"""`owner/name` on the Hub."""


class PublishParams(Section):
    """The section `publish` of params.yaml."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
    """The model's name: the card's title, and the name of its folder below `folder`."""
    folder: Annotated[str, Field(min_length=1)]
    """Keeps the receipt, and the revisions if `repository` is null; relative to the project."""
    repository: RepositoryName | None
    """`owner/name` on the Hugging Face Hub; null publishes to `folder`. Needs a token with write access in HF_TOKEN."""
    private: bool
    """Whether a repository that does not exist yet is created private."""
    dataset_repository: RepositoryName | None
    """`owner/name` of a data set on the Hub for the cleaned documents; null publishes none."""
    include_data: bool
    """Whether a revision's source archive also has the inputs of stages that git does not have, e.g. `corpus/`."""
    gate: GateParams
    """Conditions on the evaluation."""

    @model_validator(mode="after")
    def _repositories_are_of_the_hub(self) -> Self:
        if any(".." in value for value in (self.name, self.repository or "", self.dataset_repository or "")):
            raise ValueError("`..` cannot be part of a name")
        if self.dataset_repository and self.repository is None:
            raise ValueError(
                "dataset_repository is on the Hub, but the model goes to a folder: set repository too, or set "
                "dataset_repository to null"
            )
        return self
