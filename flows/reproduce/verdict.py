"""The verdict of a reproduction, and the recorded facts that differ here."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from flows.reproduce.compare import ComparedStage, FileDifference, compare_stages
from flows.reproduce.revision import RecordedRevision
from stages.formats.evaluation.report import EVALUATE_REPORT, Evaluation, HeldOutMetrics, Interval
from stages.formats.model_folder import MODEL, weight_files
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution, differing_facts
from stages.formats.revision.provenance import EVALUATION
from stages.runtime.errors import UserError


@dataclass(frozen=True, slots=True)
class ComparedSet:
    """Published and rebuilt bits per byte of a set of held-out documents."""

    name: str
    published: float
    published_interval: Interval | None
    """None if there is no value, or the set has too few documents."""
    found: float
    equal: bool
    reason: str
    """Why the numbers count as equal, or not."""


def compare_evaluations(revision: RecordedRevision, checkout: Path) -> list[ComparedSet]:
    """Compare each set of the two evaluations; empty if one of these is missing or damaged."""
    try:
        published, found = Evaluation.read(revision.folder / EVALUATION), Evaluation.read(checkout / EVALUATE_REPORT)
    except (OSError, UserError):
        return []
    ours, theirs = (
        {name: receipt.documents_sha256 for name, receipt in report.receipt.sets.items()}
        for report in (published, found)
    )
    return [
        compare_set(*pair, same_documents=ours.get(pair[0]) == theirs.get(pair[0])) for pair in pairs(published, found)
    ]


def pairs(ours: Evaluation, theirs: Evaluation) -> Iterator[tuple[str, HeldOutMetrics | None, HeldOutMetrics | None]]:
    """Yield (name, published, found) for each set of either evaluation, the held-out split first."""
    yield "validation", ours, theirs
    yield from ((name, ours.sets.get(name), theirs.sets.get(name)) for name in {**ours.sets, **theirs.sets})


def compare_set(
    name: str, published: HeldOutMetrics | None, found: HeldOutMetrics | None, *, same_documents: bool
) -> ComparedSet:
    """Compare a set: each of `COMPARED_METRICS` must be equal or within the other's 95 % interval."""
    both = (published, found)
    ours, theirs = (metrics.bits_per_byte if metrics else math.nan for metrics in both)
    our_ends, their_ends = (metrics.interval_95.bits_per_byte if metrics else None for metrics in both)
    if published is None or found is None:
        equal, reason = False, "not published" if published is None else "not measured here"
    elif not same_documents:
        equal, reason = False, "measured on other documents"
    elif not (differing := [name for name in COMPARED_METRICS if getattr(published, name) != getattr(found, name)]):
        equal, reason = True, "equal"
    elif our_ends is None or their_ends is None:
        equal, reason = False, "too few documents (under ten) for an interval"
    else:
        pairs_of_sides = ((published, found), (found, published))
        far = [metric for metric in differing if not all(is_within_interval(*pair, metric) for pair in pairs_of_sides)]
        equal = not far
        reason = f"{', '.join(far)} not within each other's intervals" if far else "each within the other's interval"
    return ComparedSet(name, ours, our_ends, theirs, equal, reason)


COMPARED_METRICS = ("bits_per_byte", "loss", "perplexity")
"""The numbers in the card's front matter, each of which could be forged."""


def is_within_interval(metrics: HeldOutMetrics, other: HeldOutMetrics, metric: str) -> bool:
    """True if a metric of one evaluation is within its 95 % interval in the other."""
    ends = getattr(other.interval_95, metric)
    return bool(ends is not None and ends[0] <= getattr(metrics, metric) <= ends[1])


@dataclass(frozen=True, slots=True)
class ReproductionVerdict:
    """The outcome of a reproduction."""

    result: Literal["bit-identical", "equal within intervals", "not reproduced"]
    stages: list[ComparedStage]
    sets: list[ComparedSet]
    facts: list[str] = field(default_factory=list)
    """Recorded facts of the execution that differ here; empty for `bit-identical`."""

    @property
    def restored(self) -> list[str]:
        """The stages whose recorded outputs were pulled by hash, not computed."""
        return [stage.name for stage in self.stages if stage.state == "restored"]

    @property
    def explanation(self) -> str:
        """The result in a sentence."""
        match self.result:
            case "bit-identical":
                computed = ", ".join(stage.name for stage in self.stages if stage.state != "restored")
                return f"every output of {computed or 'no stage'} was recomputed and is byte-identical to the record"
            case "equal within intervals":
                return (
                    "the bytes differ, but bits per byte, loss and perplexity are within the published 95 % intervals"
                )
            case "not reproduced":
                return "the result differs from the published one"

    @property
    def first(self) -> tuple[ComparedStage, FileDifference | None] | None:
        """The first stage that differs, and its first difference, or None if the stage did not run."""
        stage = next((stage for stage in self.stages if stage.state in ("different", "not run")), None)
        return None if stage is None else (stage, next(iter(stage.differences), None))


def verdict_of(revision: RecordedRevision, checkout: Path, restored: list[str]) -> ReproductionVerdict:
    """Compare the stages, the evaluations and the executions."""
    stages = compare_stages(revision, checkout, restored)
    weights = {f"{MODEL}/{file.name}" for file in weight_files(revision.folder)}
    same = weights.isdisjoint(difference.file for stage in stages for difference in stage.differences)
    sets = compare_evaluations(revision, checkout)
    different = [stage for stage in stages if stage.state in ("different", "not run")]
    if not different and stages and same:
        return ReproductionVerdict("bit-identical", stages, sets)
    equal = bool(different and sets) and all(part.equal for part in sets)
    equal = equal and all(stage.state != "not run" for stage in stages)
    if same:  # equal weights must give equal numbers, not only numbers within intervals
        equal = equal and all(difference.only_versions for stage in stages for difference in stage.differences)
    facts = list(different_facts(revision, checkout))
    return ReproductionVerdict("equal within intervals" if equal else "not reproduced", stages, sets, facts)


def different_facts(revision: RecordedRevision, checkout: Path) -> Iterator[str]:
    """Yield the facts in which the executions of the two trainings differ."""
    recorded, present = revision.execution, Execution.find(checkout / TRAIN_EXECUTION)
    if recorded is None or present is None or not recorded.sessions or not present.sessions:
        whose = "recorded" if recorded is None or not recorded.sessions else "present"
        yield f"it is not known how the {whose} training was executed"
        return
    first, *later = recorded.sessions
    for session in later:
        yield from (
            f"the recorded run itself, from step {session.first_step}: {fact} became {later_value}"
            for fact, _, later_value in differing_facts(first, session)
        )
    differing = dict.fromkeys(facts for session in present.sessions for facts in differing_facts(first, session))
    yield from (f"{fact}: recorded {then}, here {now}" for fact, then, now in differing)
