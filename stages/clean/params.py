"""What `clean` keeps: filters, duplicates, evaluation sets, masks, and the split."""

from functools import cache, partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.clean import filters
from stages.clean.filtering import Count, Filter, Measure, Share
from stages.runtime.section import FileName, Section, require_distinct, subclasses_in


@cache
def filter_classes() -> tuple[type[Filter], ...]:
    """Every filter, in the order in which they are applied: by the name of their module.

    The first filter that drops a document gives the verdict.
    """
    names = sorted(module.name for module in iter_modules(filters.__path__) if not module.ispkg)
    modules = [import_module(f"stages.clean.filters.{name}") for name in names]
    found = subclasses_in(modules, Filter)  # type: ignore[type-abstract]
    require_distinct(((kind.__module__, name) for kind in found for name in kind.model_fields), "parameter")
    return found


class Filters(*filter_classes()):  # type: ignore[misc]
    """The parameters of every module in `stages/clean/filters/`."""

    def measures(self) -> dict[str, Measure]:
        """Filter, with the arguments that its measure is given -> how it measures one document."""
        found = {}
        for kind in filter_classes():
            if (measure := kind.measurement(self)) is not None:
                given = (*measure.args, *measure.keywords.items()) if isinstance(measure, partial) else ()
                found[" ".join((f"{kind.__module__}.{kind.__qualname__}", *map(str, given)))] = measure
        return found


class NearDuplicates(Section):
    """Documents that are alike, by the Jaccard similarity of their sets of words."""

    similarity: Annotated[float, Field(gt=0.3, le=1)]
    """A document with at least this similarity to a kept one, and enough of its passages of five words, is
    dropped (CodeParrot: 0.85, BigCode: 0.7). Lower: fewer documents, and more comparisons."""
    minimum_words: Count
    """Documents with fewer distinct words are not compared."""


class Decontamination(Section):
    """Documents that contain a passage of an evaluation set are dropped, so that its score means something."""

    files: Annotated[list[FileName], Field(min_length=1)]
    """Evaluation sets: files with an item in each row, as `collect` reads them. List them under `deps` of the stage in
    dvc.yaml too."""
    fields: Annotated[list[str], Field(min_length=1)]
    """Fields of an item that make up its text, e.g. `prompt` and `canonical_solution`."""
    ngram_size: Annotated[int, Field(ge=3, le=100)]
    """Length in words of the n-gram that counts as a passage. Shorter: more documents are dropped, more of them by
    chance (GPT-3: 13). An item with fewer words is a passage as a whole."""
    minimum_words: Count
    """Items with fewer words are not looked for, since documents contain them by chance; they are listed."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.minimum_words > self.ngram_size:
            raise ValueError(f"minimum_words: at most ngram_size ({self.ngram_size})")
        return self


class Masks(Section):
    """What is replaced by a placeholder, before anything else is judged. A masked document has another id."""

    emails: bool
    """E-mail addresses, except those of documentation domains (example.com)."""
    ip_addresses: bool
    """Public IPv4 and IPv6 addresses."""
    keys: bool
    """Private keys and credentials by their form (detect-secrets)."""

    @property
    def kinds(self) -> list[str]:
        """The filters that are on."""
        return [kind for kind, is_on in self.model_dump().items() if is_on]


class Split(Section):
    """The validation split. The same content is never in both splits."""

    by: Literal["source", "document"]
    """`source`: whole packages, repositories or data sets are held out; what is like each other stays together.
    `document`: single documents, for a corpus of one source."""
    validation_sources: list[str]
    """Sources held out by name (with `by: source`); empty: drawn by `validation_share`."""
    validation_share: Share | None
    """Expected share of sources (or documents) held out, drawn by a hash of (seed, source or content). Of documents at
    least one is held out and one trained on, unless it is 0 or 1. null if sources are named."""

    @model_validator(mode="after")
    def _held_out_in_one_way(self) -> Self:
        if self.by == "document" and self.validation_sources:
            raise ValueError("by = document holds out single documents: set validation_sources to [], or by: source")
        if self.validation_sources and self.validation_share is not None:
            raise ValueError("validation_sources are held out, so none are drawn: set validation_share to null")
        if not self.validation_sources and self.validation_share is None:
            raise ValueError("validation_share = null: set a share from 0 to 1, or name validation_sources")
        return self

    @property
    def drawn_share(self) -> float:
        """The share that is drawn; 0 if sources are named."""
        return self.validation_share or 0.0


class CleanParams(Section):
    """The section `clean` of params.yaml."""

    seed: int
    """Seed of every random choice. A choice depends on (seed, document) alone, so other documents do not change it."""
    filters: Filters
    """Filters that drop documents. A filter is off if its value is null (or false)."""
    near_duplicates: NearDuplicates | None
    """What counts as a near-duplicate; null keeps them all. Exact duplicates are always dropped."""
    decontamination: Decontamination | None
    """What must not be in the corpus; null looks for nothing."""
    masks: Masks
    """Values that are replaced by a placeholder."""
    split: Split
    """The validation split."""
