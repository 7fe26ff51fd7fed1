"""What a published model is called, where it goes, and what its card says."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from stages.runtime.section import Section


class PublishParams(Section):
    """The section `publish` of params.yaml."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
    """Of the model: the card's title, and its folder below `folder`."""
    folder: Annotated[str, Field(min_length=1)]
    """Where revisions are kept if `repository` is null; relative to the project."""
    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]{0,95}$")] | None
    """`owner/name` on the Hugging Face Hub; null publishes to `folder`. Needs a token with write access in HF_TOKEN."""
    private: bool
    """Whether a repository that does not exist yet is created private."""
    license: Annotated[str, Field(min_length=1)]
    """Of the weights, as the Hub names it, e.g. `apache-2.0`."""
    language: list[str]
    """What the model was trained on, e.g. `code` or `en`."""
    tags: list[str]
    """By which the Hub finds it."""
    description: Annotated[str, Field(min_length=1)]
    """The card's first paragraph."""

    @model_validator(mode="after")
    def _name_is_no_parent(self) -> Self:
        if ".." in self.name or ".." in (self.repository or ""):
            raise ValueError("`..` cannot be part of a name")
        return self
