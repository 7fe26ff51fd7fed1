"""Verdicts: filters, duplicates and the split as queries over the ledger's features."""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from stages.clean.params import CleanParams, ConfigOrTest, Filters, Split
from stages.formats.entry import UserError

KEPT = "kept"
EXACT_DUPLICATE = "exact_duplicate"
TRAIN, VALIDATION, NEITHER = "train", "validation", ""

Mask = npt.NDArray[np.bool_]


def judge(features: pd.DataFrame, params: CleanParams) -> pd.DataFrame:
    """The ledger: the features with `verdict` (`kept`, or the first filter that drops it) and `side`."""
    verdict = np.full(len(features), KEPT, dtype=object)
    for name, dropped in filter_masks(features, params.filters, params.seed):
        verdict[(verdict == KEPT) & dropped] = name
    verdict[later_copies(features, verdict == KEPT)] = EXACT_DUPLICATE
    held_out = held_out_mask(features, params.split, params.seed)
    side = np.where(verdict != KEPT, NEITHER, np.where(held_out, VALIDATION, TRAIN))
    return features.assign(verdict=verdict, side=side)


def filter_masks(features: pd.DataFrame, filters: Filters, seed: int) -> Iterator[tuple[str, Mask]]:
    """Name and mask of the dropped documents for each filter that is on, each judged on its own, in their order."""
    for threshold, column, above in (
        (filters.line_length_maximum, "line_length_maximum", True),
        (filters.line_length_mean_maximum, "line_length_mean", True),
        (filters.alphanumeric_share_minimum, "alphanumeric_share", False),
        (filters.characters_per_token_minimum, "characters_per_token", False),
        (filters.digit_share_maximum, "digit_share", True),
        (filters.comment_share_minimum, "comment_share", False),
        (filters.comment_share_maximum, "comment_share", True),
        (filters.assignments_minimum, "assignments", False),
    ):
        if threshold is not None:
            values = features[column].to_numpy()
            extreme = "_above" if above else "_below"
            yield column + extreme, values > threshold if above else values < threshold
    if filters.generated:
        yield "generated", features["generated_mark"].to_numpy(dtype=bool)
    if filters.config_or_test is not None:
        yield "config_or_test", _config_or_test(features, filters.config_or_test, seed)
    if filters.no_keywords_probability is not None:
        without = ~features["has_keyword"].to_numpy(dtype=bool)
        yield "no_keywords", _drawn(features["id"], without, filters.no_keywords_probability, seed, "no_keywords")


def _config_or_test(features: pd.DataFrame, filter_: ConfigOrTest, seed: int) -> Mask:
    limit = np.floor(features["newlines"].to_numpy() * filter_.occurrences_per_line)
    counts = np.maximum(features["config_count"].to_numpy(), features["test_count"].to_numpy())
    candidates = features["config_or_test_mark"].to_numpy(dtype=bool) | (counts > limit)
    return _drawn(features["id"], candidates, filter_.probability, seed, "config_or_test")


def _drawn(names: Iterable[str], candidates: Mask, probability: float, seed: int, purpose: str) -> Mask:
    pairs = zip(names, candidates, strict=True)
    return np.array(
        [bool(candidate) and draw(seed, purpose, name) < probability for name, candidate in pairs], dtype=bool
    )


def draw(seed: int, purpose: str, name: str) -> float:
    """A number from [0, 1) that hangs on its arguments alone, not on who was drawn before."""
    digest = hashlib.sha256(f"{seed}\t{purpose}\t{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def later_copies(features: pd.DataFrame, kept: Mask) -> Mask:
    """Of the kept documents with the same content, all but the first by (source, path, id)."""
    order = features.loc[kept].sort_values(["source", "path", "id"])
    copies = order.index[order.duplicated("content_sha256")]
    return np.asarray(features.index.isin(copies))


def held_out_mask(features: pd.DataFrame, split: Split, seed: int) -> Mask:
    """Which documents belong to the validation side."""
    if split.by == "source":
        known = set(features["source"])
        if unknown := sorted(set(split.validation_sources) - known):
            raise UserError(
                f"params.yaml: clean.split.validation_sources: no source `{unknown[0]}` in the corpus; "
                f"it has {', '.join(sorted(known)[:30])}"
            )
        named = set(split.validation_sources) or {
            source for source in known if draw(seed, "split", source) < split.validation_share
        }
        return np.asarray(features["source"].isin(named))
    everyone = np.ones(len(features), dtype=bool)
    return _drawn(features["content_sha256"], everyone, split.validation_share, seed, "split")


def check_sides(ledger: pd.DataFrame, split: Split) -> None:
    """Raise UserError unless both sides of the split have documents."""
    if (ledger["verdict"] != KEPT).all():
        counts = ledger["verdict"].value_counts()
        raise UserError(
            f"clean: the corpus is empty: all {len(ledger)} documents were dropped, most of them "
            f"({counts.iloc[0]}) by `{counts.index[0]}`; loosen clean.filters in params.yaml"
        )
    for side in (TRAIN, VALIDATION):
        if not (ledger["side"] == side).any():
            raise UserError(
                f"clean: the {side} side is empty after cleaning ({ledger['source'].nunique()} sources, split by "
                f"{split.by}); set clean.split in params.yaml"
            )
