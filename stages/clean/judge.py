"""The verdict on every document: what the stage does, and what `parrotflow data whatif` asks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from stages.clean.ledger import measure_shards
from stages.clean.masked_shards import MaskedShards, mask_shards
from stages.clean.params import CleanParams
from stages.clean.similarity.decontamination import Hit, find_contaminated
from stages.clean.similarity.near_duplicates import find_clusters
from stages.clean.verdicts import (
    CONTAMINATED,
    NEAR_DUPLICATE,
    apply_filters,
    assign_splits,
    drop,
    drop_duplicates,
    drop_exact_duplicates,
    kept_rows,
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdicts on a corpus, and what they were found in."""

    masked: MaskedShards
    ledger: pd.DataFrame
    hits: list[Hit]
    """The documents with a passage of an evaluation set."""


def judge(shards: Sequence[Path], params: CleanParams) -> Judgement:
    """Mask, measure, filter, look for duplicates and split. What is cached is not computed again."""
    masked = mask_shards(shards, params.masks)
    ledger = apply_filters(measure_shards(masked.paths), params.filters, params.seed)
    hits = []
    if params.decontamination is not None:
        hits = find_contaminated(masked.paths, params.decontamination, params.words)
        ledger = drop(ledger, [hit.row for hit in hits], CONTAMINATED)
    ledger = drop_exact_duplicates(ledger)
    if params.near_duplicates is not None:
        clusters = find_clusters(masked.paths, ledger, kept_rows(ledger), params.near_duplicates, params.words)
        ledger = drop_duplicates(ledger, clusters, NEAR_DUPLICATE)
    return Judgement(masked, assign_splits(ledger, params.split, params.seed), hits)
