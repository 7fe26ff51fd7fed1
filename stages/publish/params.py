"""What a published model is called, where it goes, under which conditions, and what its card says."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from stages.runtime.section import Section


class GateParams(Section):
    """Conditions on the evaluation. If one does not hold, nothing is published."""

    bits_per_byte_at_most: Annotated[float, Field(gt=0)] | None
    """Of the held-out split; null sets no limit."""
    allow_worse: bool
    """Whether `main` may move to a model with more bits per byte than the one it leads to now."""
    tolerance: Annotated[float, Field(ge=0)]
    """In bits per byte: a model that is worse by no more than this counts as equal."""


RepositoryName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]{0,95}$")]
"""`owner/name` on the Hub."""


class PublishParams(Section):
    """The section `publish` of params.yaml."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
    """Of the model: the card's title, and its folder below `folder`."""
    folder: Annotated[str, Field(min_length=1)]
    """Keeps the receipt, and the revisions if `repository` is null; relative to the project."""
    repository: RepositoryName | None
    """`owner/name` on the Hugging Face Hub; null publishes to `folder`. Needs a token with write access in HF_TOKEN."""
    private: bool
    """Whether a repository that does not exist yet is created private."""
    push_steps_during_training: bool
    """Whether `parrotflow run` sends exported steps to `repository` while training runs; else publish sends them."""
    dataset_repository: RepositoryName | None
    """`owner/name` of a data set on the Hub for the cleaned documents; null publishes none."""
    tokenizer_repository: RepositoryName | None
    """`owner/name` on the Hub for the tokenizer alone; null publishes none."""
    describes: list[str]
    """The sources of `collect.sources` for which what follows was written: their names, or their kinds where they have
    none. Publishing refuses others, so that no card describes another corpus."""
    license: Annotated[str, Field(min_length=1)] | None
    """Of the weights, as the Hub names it, e.g. `apache-2.0`; null: the card states none."""
    language: list[str]
    """What the model was trained on, e.g. `code` or `en`."""
    tags: list[str]
    """By which the Hub finds it."""
    description: Annotated[str, Field(min_length=1)]
    """The card's first paragraph."""
    prompt: str
    """Of the examples; empty: the card takes the beginning of a held-out document."""
    authors: list[str]
    """Of the model, as the citation names them."""
    contact: str | None
    """For questions: an address or a page; null: the card names none."""
    intended_use: Annotated[str, Field(min_length=1)]
    """What the model is for, and what it is not for; Markdown."""
    limitations: list[str]
    """A line each, in Markdown; the card adds what follows from the data."""
    include_data: bool
    """Whether a revision holds the data files that stages depend on and that neither the commit nor the source archive
    has, e.g. `corpus/`. Their names and hashes are published anyhow."""
    gate: GateParams
    """Conditions on the evaluation."""

    @model_validator(mode="after")
    def _repositories_are_of_the_hub_and_differ(self) -> Self:
        given = {
            name: value
            for name in ("repository", "dataset_repository", "tokenizer_repository")
            if (value := getattr(self, name)) is not None
        }
        if any(".." in value for value in (self.name, *given.values())):
            raise ValueError("`..` cannot be part of a name")
        if given and self.repository is None:
            name = next(iter(given))
            raise ValueError(
                f"{name} is on the Hub, and the model goes to a folder: set repository too, or set {name} to null"
            )
        if self.tokenizer_repository is not None and self.tokenizer_repository == self.repository:
            raise ValueError("tokenizer_repository is the model's repository, which has the tokenizer: set it to null")
        return self

    def warnings(self, params: Mapping[str, Any]) -> list[str]:
        """That the card would describe another corpus."""
        if "collect" not in params:
            return []
        fault = describes_another_corpus(self.model_dump(), params["collect"]["sources"])
        return [f"publish will refuse: {fault}"] if fault else []


WRITTEN_FOR_A_CORPUS = ("name", "license", "language", "tags", "description", "prompt", "intended_use", "limitations")


def describes_another_corpus(publish: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]) -> str | None:
    """What to do where `publish` was written for other sources than these, entries of `collect.sources`; else None."""
    collected = [str(source.get("name", source["kind"])) for source in sources]
    described = publish["describes"]
    if set(collected) == set(described):
        return None
    return (
        f"params.yaml: publish.describes is [{', '.join(described)}], but collect.sources has {', '.join(collected)}: "
        f"the card would describe another corpus. Look through publish.{', '.join(WRITTEN_FOR_A_CORPUS)}, then set "
        f"publish.describes: [{', '.join(dict.fromkeys(collected))}]"
    )
