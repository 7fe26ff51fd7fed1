"""The verdict on every document: filters, duplicates and the split are queries over the ledger's features."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from stages.clean.decontamination import find_contaminated
from stages.clean.filtering import draw_uniform
from stages.clean.ledger import measure_shards
from stages.clean.masking import MaskedShards, mask_shards
from stages.clean.near_duplicates import find_near_duplicates
from stages.clean.params import CleanParams, Filters, Split, filter_classes
from stages.formats.documents import KEPT, read_shard
from stages.formats.tokens import SPLITS, TRAIN, VALIDATION
from stages.runtime.cache import hash_in_workers
from stages.runtime.errors import UserError

EXACT_DUPLICATE = "exact_duplicate"
NEAR_DUPLICATE = "near_duplicate"
CONTAMINATED = "contaminated"
NO_SPLIT = ""
"""The split of a document that is dropped."""


class Judgment(NamedTuple):
    """The verdicts on a corpus, and what they were found in."""

    masked: MaskedShards
    ledger: pd.DataFrame
    searched: Counter[str]
    """How the items of evaluation sets were searched for."""


def judge_documents(shards: Sequence[Path], params: CleanParams) -> Judgment:
    """Mask, measure, filter, find duplicates and split. Cached results are not computed again."""
    if params.split.by == "source":  # before the work, which may take hours
        sources = (read_shard(shard, ["source"]).column("source").unique().to_pylist() for shard in shards)
        require_known_sources(params.split, set(chain.from_iterable(sources)))
    masked = mask_shards(shards, params.masks.kinds)
    hash_in_workers(masked.paths)
    features = measure_shards(masked.paths, params.filters.measures())
    ledger = apply_filters(features, params.filters, params.seed)
    searched: Counter[str] = Counter()
    if params.decontamination is not None:
        hits, searched = find_contaminated(masked.paths, params.decontamination, params.masks.kinds)
        ledger = drop(ledger, hits, CONTAMINATED)
    ledger = drop(ledger, exact_duplicates(ledger), EXACT_DUPLICATE)
    if params.near_duplicates is not None:
        near = find_near_duplicates(masked.paths, ledger, kept_rows(ledger), params.near_duplicates)
        names = ledger["source"] + " " + ledger["path"]
        because = {row: f"{names[other]}, {similarity:.3f}" for row, (other, similarity) in near.items()}
        ledger = drop(ledger, because, NEAR_DUPLICATE)
    return Judgment(masked, assign_splits(ledger, params.split, params.seed), searched)


def apply_filters(features: pd.DataFrame, filters: Filters, seed: int) -> pd.DataFrame:
    """The ledger: the features with `verdict` (`kept`, or the first filter that drops it) and an empty `because`."""
    verdict = np.full(len(features), KEPT, dtype=object)
    for kind in filter_classes():
        for name, dropped in kind.drops(filters, features, seed):
            verdict[(verdict == KEPT) & np.asarray(dropped, dtype=bool)] = name
    return features.assign(verdict=verdict, because="")


def exact_duplicates(ledger: pd.DataFrame) -> dict[int, str]:
    """Row -> the document it duplicates: of kept ones with equal content, the first by (source, path, id) stays."""
    order = ledger.loc[kept_rows(ledger)].sort_values(["source", "path", "id"])
    first: pd.Series = (order["source"] + " " + order["path"]).groupby(order["content_sha256"]).transform("first")
    copies = first[order["content_sha256"].duplicated()]
    return dict(zip(copies.index.tolist(), copies.tolist(), strict=True))


def kept_rows(ledger: pd.DataFrame) -> npt.NDArray[np.int64]:
    """The rows that nothing has dropped so far."""
    return np.flatnonzero(ledger["verdict"].to_numpy() == KEPT)


def drop(ledger: pd.DataFrame, because: Mapping[int, str], verdict: str) -> pd.DataFrame:
    """The ledger where those of the rows that were kept so far are dropped with a verdict, and because of what."""
    rows = [row for row in kept_rows(ledger).tolist() if row in because]
    verdicts, reasons = (ledger[name].to_numpy(dtype=object, copy=True) for name in ("verdict", "because"))
    verdicts[rows] = verdict
    reasons[rows] = [because[row] for row in rows]
    return ledger.assign(verdict=verdicts, because=reasons)


def assign_splits(ledger: pd.DataFrame, split: Split, seed: int) -> pd.DataFrame:
    """The ledger with `split`: where each kept document goes."""
    held_out = held_out_mask(ledger, split, seed)
    if split.by == "document" and 0 < split.drawn_share < 1:
        _some_of_each(held_out, ledger, seed)
    return ledger.assign(split=np.where(ledger["verdict"] != KEPT, NO_SPLIT, np.where(held_out, VALIDATION, TRAIN)))


def require_known_sources(split: Split, known: Collection[str]) -> None:
    """Raise UserError that names a source to hold out that the corpus does not have."""
    if unknown := sorted(set(split.validation_sources) - set(known)):
        raise UserError(
            f"params.yaml: clean.split.validation_sources: no source `{unknown[0]}` in the corpus; "
            f"it has {', '.join(sorted(known)[:30])}"
        )


def held_out_mask(features: pd.DataFrame, split: Split, seed: int) -> npt.NDArray[np.bool_]:
    """Which documents belong to the validation split."""
    if split.by == "source":
        named = set(split.validation_sources) or {
            source for source in set(features["source"]) if draw_uniform(seed, "split", source) < split.drawn_share
        }
        return np.asarray(features["source"].isin(named))
    draws = (draw_uniform(seed, "split", content) for content in features["content_sha256"])
    return np.array([value < split.drawn_share for value in draws], dtype=bool)


def _some_of_each(held_out: npt.NDArray[np.bool_], ledger: pd.DataFrame, seed: int) -> None:
    """Fill a split that the draws left empty, which happens with few documents: hold out the document with the smallest
    draw, or train on the one with the largest. Documents with equal content stay together."""
    rows = kept_rows(ledger)
    is_empty = not held_out[rows].any()
    if not is_empty and not held_out[rows].all():
        return
    contents = ledger.loc[rows, "content_sha256"]
    draws = {content: draw_uniform(seed, "split", content) for content in contents}
    if len(draws) > 1:
        moved = (min if is_empty else max)(draws, key=draws.__getitem__)
        held_out[rows[(contents == moved).to_numpy()]] = is_empty


def key_of(verdict: str) -> str:
    """The key of params.yaml that decides about a verdict."""
    own = {
        NEAR_DUPLICATE: "clean.near_duplicates",
        CONTAMINATED: "clean.decontamination",
        EXACT_DUPLICATE: "collect.sources",
    }
    return own.get(verdict, "clean.filters")


def check_splits(ledger: pd.DataFrame, split: Split) -> None:
    """Raise UserError that names a value to set unless both splits have documents."""
    kept = ledger[ledger["verdict"] == KEPT]
    dropped = ledger.loc[ledger["verdict"] != KEPT, "verdict"].value_counts()
    most = f"({dropped.iloc[0]}) by `{dropped.index[0]}`" if len(dropped) else ""
    key = key_of(str(dropped.index[0])) if len(dropped) else "clean.filters"
    if kept.empty:
        raise UserError(
            f"clean: the corpus is empty: all {len(ledger)} documents were dropped, most of them {most}; loosen {key} "
            "in params.yaml. Many filters suit only Python code; for other files run `parrotflow params corpus=folder`"
        )
    for name in SPLITS:
        if not (kept["split"] == name).any():
            raise UserError(
                f"clean: the {name} split is empty: {len(kept)} of {len(ledger)} documents were kept"
                f"{f', most of the others were dropped {most}' if most else ''}; the kept ones have "
                f"{kept['source'].nunique()} sources, and are split by {split.by}. Add documents, loosen {key}, name a "
                "source in clean.split.validation_sources, or set clean.split: {by: document, validation_share: 0.05} "
                "in params.yaml (data/clean/ledger has the verdict on each document)"
            )
