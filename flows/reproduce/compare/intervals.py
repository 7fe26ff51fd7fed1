"""The evaluation of the rebuilt model against the published one: equal within their 95 % intervals?"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.reproduce.compare.fields import ROUNDING
from flows.reproduce.revision import Revision
from stages.formats.evaluation.report import (
    EVALUATE_RECEIPT,
    EVALUATE_REPORT,
    Evaluation,
    EvaluationReceipt,
    HeldOutMetrics,
    Interval,
)
from stages.formats.model_folder import MODEL, weights_sha256
from stages.formats.revision.layout import EVALUATION, EVALUATION_RECEIPT
from stages.runtime.entry import UserError

MAIN_SET = "validation"


@dataclass(frozen=True, slots=True)
class ComparedSet:
    """Bits per byte of one set of held-out documents, as published and of the rebuilt model."""

    name: str
    published: float
    published_interval: Interval | None
    """None of a set of one document, which cannot vary, and where there is no value."""
    found: float
    found_interval: Interval | None
    equal: bool
    reason: str
    """Why it is equal, or not."""


def compare_evaluations(revision: Revision, checkout: Path) -> list[ComparedSet]:
    """Each set of the published evaluation; empty where one of the two has no evaluation that can be read."""
    try:
        published, found = Evaluation.read(revision.folder / EVALUATION), Evaluation.read(checkout / EVALUATE_REPORT)
        documents = [
            {name: one.documents_sha256 for name, one in EvaluationReceipt.read(path).sets.items()}
            for path in (revision.folder / EVALUATION_RECEIPT, checkout / EVALUATE_RECEIPT)
        ]
    except (OSError, UserError):
        return []
    same_documents = documents[0] == documents[1]
    same = same_weights(revision, checkout)
    return [
        compare_set(name, ours, theirs, same_weights=same, same_documents=same_documents)
        if ours and theirs
        else of_one_alone(name, ours, theirs)
        for name, ours, theirs in pairs(published, found)
    ]


def same_weights(revision: Revision, checkout: Path) -> bool:
    """Whether the rebuilt weights are the published ones; False where there are none."""
    try:
        return weights_sha256(checkout / MODEL) == revision.provenance.weights_sha256
    except UserError:
        return False


def pairs(ours: Evaluation, theirs: Evaluation) -> Iterator[tuple[str, HeldOutMetrics | None, HeldOutMetrics | None]]:
    """(name, published, found) of each set that one of the two has; the held-out split first."""
    yield MAIN_SET, ours, theirs
    yield from ((name, ours.sets.get(name), theirs.sets.get(name)) for name in {**ours.sets, **theirs.sets})


def of_one_alone(name: str, published: HeldOutMetrics | None, found: HeldOutMetrics | None) -> ComparedSet:
    """A set that only one of the two evaluations has."""
    (ours, our_ends), (theirs, their_ends) = (
        (one.bits_per_byte, one.interval_95.bits_per_byte) if one else (math.nan, None) for one in (published, found)
    )
    reason = "not published" if published is None else "not measured here"
    return ComparedSet(name, ours, our_ends, theirs, their_ends, False, reason)


def compare_set(
    name: str, published: HeldOutMetrics, found: HeldOutMetrics, *, same_weights: bool, same_documents: bool
) -> ComparedSet:
    """One set. The same weights must give the same value but for rounding: an interval would hide a wrong number."""
    ours, theirs = published.bits_per_byte, found.bits_per_byte
    our_ends, their_ends = published.interval_95.bits_per_byte, found.interval_95.bits_per_byte
    if not same_documents:
        equal, reason = False, "measured on other documents"
    elif same_weights:
        equal = abs(ours - theirs) <= ROUNDING * abs(ours)
        apart = "equal but for rounding" if equal else "more apart than rounding explains"
        reason = f"the same weights, {'equal' if ours == theirs else apart}"
    elif our_ends is None or their_ends is None:
        equal, reason = False, "other weights, and a single document has no interval to be within"
    else:
        equal = our_ends[0] <= theirs <= our_ends[1] and their_ends[0] <= ours <= their_ends[1]
        reason = "each within the other's interval" if equal else "not within each other's intervals"
    return ComparedSet(name, ours, our_ends, theirs, their_ends, equal, reason)
