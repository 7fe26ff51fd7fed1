"""The publisher's own texts of a model card."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from stages.runtime.section import Section, read_section


class CardParams(Section):
    """The section `card` of params.yaml."""

    describes: list[str]
    """The sources of `collect.sources` for which what follows was written: their names, or their kinds where they have
    none. The stage refuses others, so that no card describes another corpus."""
    license: Annotated[str, Field(min_length=1)] | None
    """Licence of the weights, as the Hub names it, e.g. `apache-2.0`; null: the card states none."""
    language: list[str]
    """What the model was trained on, e.g. `code` or `en`."""
    tags: list[str]
    """Tags for the Hub's search."""
    description: Annotated[str, Field(min_length=1)]
    """The card's first paragraph."""
    prompt: str
    """Prompt of the examples; empty: the card takes the beginning of a held-out document."""
    authors: list[str]
    """The model's authors, as the citation names them."""
    contact: str | None
    """For questions: an address or a page; null: the card names none."""
    intended_use: Annotated[str, Field(min_length=1)]
    """What the model is for, and what it is not for; Markdown."""
    limitations: list[str]
    """A line each, in Markdown; the card adds what follows from the data."""

    def check(self, others: Mapping[str, Any]) -> Iterator[str]:
        """The card describes the corpus that is collected."""
        if "collect" in others and (fault := describes_another_corpus(self.model_dump(), others["collect"]["sources"])):
            yield fault.removeprefix("params.yaml: ")


class Destination(BaseModel, frozen=True, extra="ignore"):
    """The values of the section `publish` that the card shows."""

    name: str
    """The model's name: the card's title."""
    repository: str | None
    """`owner/name` on the Hub; None for a folder."""


def read_destination() -> Destination:
    """The name and the repository that params.yaml gives the model. Raises UserError as `read_section` does."""
    return read_section("publish", Destination)


WRITTEN_FOR_A_CORPUS = ("license", "language", "tags", "description", "prompt", "intended_use", "limitations")


def describes_another_corpus(card: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]) -> str | None:
    """The fault and the remedy if `card` was not written for these entries of `collect.sources`; else None."""
    collected = [str(source.get("name", source["kind"])) for source in sources]
    described = card["describes"]
    if set(collected) == set(described):
        return None
    return (
        f"params.yaml: card.describes is [{', '.join(described)}], but collect.sources has {', '.join(collected)}: "
        f"the card would describe another corpus. Update publish.name, card.{', '.join(WRITTEN_FOR_A_CORPUS)}, "
        f"then set card.describes: [{', '.join(dict.fromkeys(collected))}]"
    )
