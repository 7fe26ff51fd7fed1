"""The section `publish` of params.yaml."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from stages.runtime.section import Section


class GateParams(Section):
    """Conditions on the evaluation. If one does not hold, nothing is published."""

    bits_per_byte_at_most: Annotated[float, Field(gt=0)] | None
    """Limit on the held-out split. Null: no limit."""
    allow_worse: bool
    """Allow `main` to move to a model with more bits per byte than its current one, or to a model that was evaluated on
    other held-out documents."""
    tolerance: Annotated[float, Field(ge=0)]
    """A model that is worse by at most this many bits per byte counts as equal."""


RepositoryName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]{0,95}$")]
"""`owner/name` on the Hub."""


class PublishParams(Section):
    """The section `publish` of params.yaml."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
    """The model's name: the card's title, and the name of its folder in `folder`."""
    folder: Annotated[str, Field(min_length=1)]
    """A folder, relative to the project, for the receipt, and for the revisions if `repository` is null."""
    repository: RepositoryName | None
    """`owner/name` on the Hugging Face Hub, which needs a token with write access in HF_TOKEN. Null: publish to
    `folder`."""
    private: bool
    """Create new repositories as private."""
    dataset_repository: RepositoryName | None
    """`owner/name` of a data set on the Hub for the cleaned documents. Null: publish none."""
    include_data: bool
    """Include stage inputs that git does not have, e.g. `corpus/`, in a revision's source archive."""
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
