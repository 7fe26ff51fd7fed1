"""The evaluation of the rebuilt model against the published one: equal within their 95 % intervals?"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.reproduce.revision import Revision
from stages.formats.evaluation.report import (
    EVALUATE_RECEIPT,
    EVALUATE_REPORT,
    HeldOutMetrics,
    Interval,
    read_evaluation,
    read_evaluation_receipt,
)
from stages.formats.model_folder import MODEL, weights_sha256
from stages.formats.revision.layout import EVALUATION, EVALUATION_RECEIPT
from stages.runtime.entry import UserError

ROUNDING = 1e-4
"""The relative difference that arithmetic alone may make in bits per byte where the weights are the same."""

MAIN_SET = "validation"


@dataclass(frozen=True, slots=True)
class ComparedSet:
    """Bits per byte of one set of held-out documents, as published and of the rebuilt model."""

    name: str
    published: float
    published_interval: Interval
    found: float
    found_interval: Interval
    equal: bool
    reason: str
    """Why it is equal, or not."""


def compare_evaluations(revision: Revision, checkout: Path) -> list[ComparedSet]:
    """Each set of the published evaluation; empty where one of the two has no evaluation that can be read."""
    try:
        published, found = read_evaluation(revision.folder / EVALUATION), read_evaluation(checkout / EVALUATE_REPORT)
        documents = [
            {name: one.documents_sha256 for name, one in read_evaluation_receipt(path).sets.items()}
            for path in (revision.folder / EVALUATION_RECEIPT, checkout / EVALUATE_RECEIPT)
        ]
    except (OSError, UserError):
        return []
    same_documents = documents[0] == documents[1]
    return [
        compare_set(name, ours, theirs, same_weights=same_weights(revision, checkout), same_documents=same_documents)
        for name, ours, theirs in pairs(published, published.sets, found, found.sets)
    ]


def same_weights(revision: Revision, checkout: Path) -> bool:
    """Whether the rebuilt weights are the published ones; False where there are none."""
    try:
        return weights_sha256(checkout / MODEL) == revision.provenance.weights_sha256
    except UserError:
        return False


def pairs(
    ours: HeldOutMetrics,
    our_sets: dict[str, HeldOutMetrics],
    theirs: HeldOutMetrics,
    their_sets: dict[str, HeldOutMetrics],
) -> Iterator[tuple[str, HeldOutMetrics, HeldOutMetrics]]:
    """(name, published, found) of the sets that both have; the held-out split first."""
    yield MAIN_SET, ours, theirs
    yield from ((name, one, their_sets[name]) for name, one in our_sets.items() if name in their_sets)


def compare_set(
    name: str, published: HeldOutMetrics, found: HeldOutMetrics, *, same_weights: bool, same_documents: bool
) -> ComparedSet:
    """One set. The same weights must give the same value but for rounding: an interval would hide a wrong number."""
    ours, theirs = published.bits_per_byte, found.bits_per_byte
    (low, high), (found_low, found_high) = published.interval_95.bits_per_byte, found.interval_95.bits_per_byte
    if not same_documents:
        equal, reason = False, "measured on other documents"
    elif same_weights:
        equal = abs(ours - theirs) <= ROUNDING * abs(ours)
        apart = "equal but for rounding" if equal else "more apart than rounding explains"
        reason = f"the same weights, {'equal' if ours == theirs else apart}"
    else:
        equal = low <= theirs <= high and found_low <= ours <= found_high
        reason = "each within the other's interval" if equal else "not within each other's intervals"
    return ComparedSet(name, ours, (low, high), theirs, (found_low, found_high), equal, reason)
