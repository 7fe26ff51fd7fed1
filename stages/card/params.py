"""The section `card` of params.yaml: the publisher's texts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from stages.runtime.section import Section, read_section


class CardParams(Section):
    """The section `card` of params.yaml."""

    describes: list[str]
    """The sources in `collect.sources` for which these texts were written: their names, or else their kinds. The stage
    refuses other sources, so that no card describes another corpus."""
    license: Annotated[str, Field(min_length=1)] | None
    """License of the weights, as the Hub names it, e.g. `apache-2.0`. Null: the card states none."""
    language: list[str]
    """Languages of the training data, e.g. `code` or `en`."""
    tags: list[str]
    """Tags for the Hub's search."""
    description: Annotated[str, Field(min_length=1)]
    """The card's first paragraph."""
    prompt: str
    """Prompt of the examples. Empty: the beginning of a held-out document."""
    authors: list[str]
    """The model's authors, for the citation."""
    contact: str | None
    """An address or a page for questions. Null: the card has none."""
    intended_use: Annotated[str, Field(min_length=1)]
    """What the model is for, and what it is not for; Markdown."""
    limitations: list[str]
    """Limitations in Markdown, one line each; the card adds those of the data."""

    def check(self, others: Mapping[str, Any]) -> Iterator[str]:
        """Check that the card describes the corpus that is collected."""
        if "collect" in others and (fault := describes_another_corpus(self.model_dump(), others["collect"]["sources"])):
            yield fault.removeprefix("params.yaml: ")


class Destination(BaseModel, frozen=True, extra="ignore"):
    """The values of the section `publish` that the card shows."""

    name: str
    """The model's name, which is the card's title."""
    repository: str | None
    """`owner/name` on the Hub; None for a folder."""


def read_destination() -> Destination:
    """The model's name and repository in params.yaml. Raises UserError as `read_section` does."""
    return read_section("publish", Destination)


def describes_another_corpus(card: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]) -> str | None:
    """An error message if `card` was not written for these entries of `collect.sources`; else None."""
    collected = [str(source.get("name", source["kind"])) for source in sources]
    described = card["describes"]
    if set(collected) == set(described):
        return None
    return (
        f"params.yaml: card.describes is [{', '.join(described)}], but collect.sources has {', '.join(collected)}: "
        "the card would describe another corpus. Update publish.name, card.license, language, tags, description, "
        f"prompt, intended_use, limitations, then set card.describes: [{', '.join(dict.fromkeys(collected))}]"
    )
