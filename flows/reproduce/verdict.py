"""The verdict, and where the result differs the likely cause, derived from recorded and present facts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from flows.reproduce.files import (
    CARD_STAGE,
    PREVIOUS,
    PYTHON,
    ROUNDING,
    Cause,
    CauseKind,
    ComparedStage,
    Difference,
    compare_stages,
    same_weights,
)
from flows.reproduce.revision import RecordedRevision, ancestors
from stages.formats.evaluation.report import (
    EVALUATE_RECEIPT,
    EVALUATE_REPORT,
    Evaluation,
    EvaluationReceipt,
    HeldOutMetrics,
    Interval,
)
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution, Session
from stages.formats.revision.provenance import (
    CARD,
    CURVES,
    EVALUATION,
    EVALUATION_RECEIPT,
    EXECUTION,
    INPUTS,
    PROVENANCE,
)
from stages.runtime.entry import UserError

BIT_IDENTICAL, EQUAL, NOT_REPRODUCED = "bit-identical", "equal within intervals", "not reproduced"

OF_A_KIND: dict[CauseKind, tuple[str, ...]] = {
    "hardware": ("device", "device_type", "cpu_flags", "cpu_capability", "isa_limits", "precision"),
    "threads": (
        *("processes", "machines", "threads_per_process", "distributed"),
        *("micro_batch_size", "gradient_accumulation_steps"),
    ),
    "library": ("versions",),
    "settings": ("compiled", "environment", "launch"),
}
FACTS = {name: kind for kind, names in OF_A_KIND.items() for name in names}
"""Field of a session -> what kind of cause it is, the likeliest first."""

FIELDS_OF_THEIR_OWN = {"OMP_NUM_THREADS", "PARROTFLOW_COMPILE", "PARROTFLOW_MICRO_BATCH"}
"""Variables whose effect another field of a session has: whether they were set does not matter."""


@dataclass(frozen=True, slots=True)
class ComparedSet:
    """Bits per byte of one set of held-out documents, as published and of the rebuilt model."""

    name: str
    published: float
    published_interval: Interval | None
    """None of a set of one document, which cannot vary, and where there is no value."""
    found: float
    equal: bool
    reason: str
    """Why it is equal, or not."""


def compare_evaluations(revision: RecordedRevision, checkout: Path, *, same_weights: bool) -> list[ComparedSet]:
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
    return [
        compare_set(*one, same_weights=same_weights, same_documents=same_documents) for one in pairs(published, found)
    ]


def pairs(ours: Evaluation, theirs: Evaluation) -> Iterator[tuple[str, HeldOutMetrics | None, HeldOutMetrics | None]]:
    """(name, published, found) of each set that one of the two has; the held-out split first."""
    yield "validation", ours, theirs
    yield from ((name, ours.sets.get(name), theirs.sets.get(name)) for name in {**ours.sets, **theirs.sets})


def compare_set(
    name: str,
    published: HeldOutMetrics | None,
    found: HeldOutMetrics | None,
    *,
    same_weights: bool,
    same_documents: bool,
) -> ComparedSet:
    """One set. The same weights must give the same value but for rounding: an interval would hide a wrong number."""
    ours, theirs = (one.bits_per_byte if one else math.nan for one in (published, found))
    our_ends, their_ends = (one.interval_95.bits_per_byte if one else None for one in (published, found))
    if published is None or found is None:
        equal, reason = False, "not published" if published is None else "not measured here"
    elif not same_documents:
        equal, reason = False, "measured on other documents"
    elif same_weights:
        equal = abs(ours - theirs) <= ROUNDING * abs(ours)
        apart = "equal but for rounding" if equal else "more apart than rounding explains"
        reason = f"the same weights, {'equal' if ours == theirs else apart}"
    elif our_ends is None or their_ends is None:
        equal, reason = False, "other weights, and a single document has no interval to be within"
    else:
        far = [one for one in METRICS if not (is_within(published, found, one) and is_within(found, published, one))]
        equal = not far
        reason = f"{', '.join(far)} not within each other's intervals" if far else "each within the other's interval"
    return ComparedSet(name, ours, our_ends, theirs, equal, reason)


METRICS = [name for name, metric in HeldOutMetrics.model_fields.items() if metric.annotation is float]
"""Of a set as a whole."""


def is_within(one: HeldOutMetrics, other: HeldOutMetrics, metric: str) -> bool:
    """Whether a metric of one evaluation is within its 95 % interval in the other."""
    ends = getattr(other.interval_95, metric)
    return bool(ends is not None and ends[0] <= getattr(one, metric) <= ends[1])


@dataclass(frozen=True, slots=True)
class ReproductionVerdict:
    """What became of a reproduction."""

    result: Literal["bit-identical", "equal within intervals", "not reproduced"]
    stages: list[ComparedStage]
    sets: list[ComparedSet]
    causes: list[Cause] = field(default_factory=list)
    """The most likely first; empty where nothing differs."""
    not_compared: list[str] = field(default_factory=list)
    """What of the revision was not computed again or compared, in words."""

    @property
    def restored(self) -> list[str]:
        """The stages whose recorded outputs were pulled by their hash, and not computed."""
        return [stage.name for stage in self.stages if stage.state == "restored"]

    @property
    def explanation(self) -> str:
        """The result in a sentence."""
        match self.result:
            case "bit-identical":
                computed = ", ".join(stage.name for stage in self.stages if stage.state != "restored")
                return f"every output of {computed or 'no stage'} was computed and has the bytes of the recorded one"
            case "equal within intervals":
                return (
                    "the bytes differ, and bits per byte, loss and perplexity agree with the published ones within 95 "
                    "% intervals (of the same weights but for rounding); benchmarks of other weights are listed and "
                    "not judged"
                )
            case "not reproduced":
                return "the result is not the published one"

    @property
    def first(self) -> tuple[ComparedStage, Difference | None] | None:
        """The first stage that differs, and its first difference; no difference where the stage did not run."""
        stage = next((stage for stage in self.stages if stage.state in ("different", "not run")), None)
        return None if stage is None else (stage, next(iter(stage.differences), None))


def judge(
    revision: RecordedRevision,
    checkout: Path,
    restored: list[str],
    libraries: dict[str, tuple[str, str]],
    notes: list[str],
    card: ComparedStage | str,
) -> ReproductionVerdict:
    """Compare everything.

    `libraries`: those of other versions than locked; `notes`: facts that this machine lacks; `card`: the comparison
    of the card that was rendered again, or why there is none.
    """
    stages, same = compare_stages(revision, checkout, restored), same_weights(revision, checkout)
    if isinstance(card, ComparedStage):
        stages.append(card)
    left_out = list(not_compared(revision, card))
    sets = compare_evaluations(revision, checkout, same_weights=same)
    first = next((stage for stage in stages if stage.state in ("different", "not run")), None)
    if first is None:
        if stages and same:
            return ReproductionVerdict("bit-identical", stages, sets, not_compared=left_out)
        cause = Cause("unknown", "dvc.lock has the recorded outputs, and the weights are not the published ones")
        return ReproductionVerdict("not reproduced", stages, sets, [cause], left_out)
    ran = all(stage.state != "not run" for stage in stages)
    # What publish said of the model and the record does not say.
    contradicted = any(
        one.weight == "content" for stage in stages if stage.name == CARD_STAGE for one in stage.differences
    )
    equal = ran and bool(sets) and all(one.equal for one in sets) and not contradicted
    if same:  # then no interval applies, to no number of any report
        equal = equal and not any(unexplained(revision, stages, libraries))
    causes = find_causes(revision, checkout, first, libraries)
    if not causes:
        causes = [Cause("unknown", note) for note in notes]
        why = "no recorded fact differs: hardware that is not recorded, or a step without fixed order"
        causes.append(Cause("unknown", why))
    return ReproductionVerdict("equal within intervals" if equal else "not reproduced", stages, sets, causes, left_out)


def not_compared(revision: RecordedRevision, card: ComparedStage | str) -> Iterator[str]:
    """What of a revision its reproduction says nothing of."""
    if isinstance(card, str):
        files = ", ".join(path for path in (CARD, CURVES, INPUTS) if path in revision.provenance.files)
        yield f"{files}: {card}"
    if EXECUTION in revision.provenance.files:
        yield f"{EXECUTION}: on what the training ran is the publisher's word; nothing recorded contradicts it"
    yield f"{PROVENANCE}: when and by whom, likewise"


def unexplained(
    revision: RecordedRevision, stages: list[ComparedStage], libraries: dict[str, tuple[str, str]]
) -> Iterator[Difference]:
    """Where the weights are the same: differences that neither rounding nor other libraries explain.

    Data that the revision does not hold is left out where it is known by its hash alone: it led to the same weights, or
    it is also of the model that was published before.
    """
    explained = {"rounding", "versions"} if libraries else {"rounding"}
    for stage in stages:
        left_out = bool(libraries) or stage.name in revision.data_stages or compares_with_another(stage)
        for difference in stage.differences:
            judged = difference.file in revision.published.values() or not left_out
            if judged and difference.weight not in explained:
                yield difference


def compares_with_another(stage: ComparedStage) -> bool:
    """Whether a stage found another model published before than the recorded one, or none."""
    return any(PREVIOUS.search(difference.field) for difference in stage.differences)


def find_causes(
    revision: RecordedRevision, checkout: Path, first: ComparedStage, libraries: dict[str, tuple[str, str]]
) -> list[Cause]:
    """What was not as recorded when the first differing stage ran, the most direct first."""
    if first.state == "not run":
        return [Cause("unknown", f"stage {first.name} did not run to its end; its messages are above")]
    if first.not_as_made or first.name == CARD_STAGE:
        files = first.not_as_made or [difference.file for difference in first.differences]
        why = "whose output here is the recorded one" if first.not_as_made else "by all that is recorded"
        said = f"the published file is not what the stage {first.name} made, {why}"
        return [Cause("publication", f"{file}: {said}") for file in files]
    found = list(first.different_inputs)
    if compares_with_another(first):
        found.append(Cause("data", "evaluate.previous: what was published before is another model here, or none"))
    named = {name for values in revision.stages[first.name].get("params", {}).values() for name in values}
    is_trained = revision.training in (first.name, *ancestors(revision.stages, revision.makers, first.name))
    found += [
        Cause("library", f"{name}: locked {locked}, here {here}")
        for name, (locked, here) in sorted(libraries.items(), key=lambda item: item[0] not in named)
        if name != PYTHON or not is_trained  # of Python the execution says it, after the hardware
    ]
    if is_trained:
        found += differing_execution(revision.execution, Execution.find(checkout / TRAIN_EXECUTION))
    return list(dict.fromkeys(found))


def differing_execution(recorded: Execution | None, found: Execution | None) -> Iterator[Cause]:
    """The facts of the training's execution that differ, hardware and threads before all else."""
    if recorded is None or found is None or not recorded.sessions or not found.sessions:
        whose = "recorded" if recorded is None or not recorded.sessions else "present"
        yield Cause("unknown", f"how the {whose} training was executed is not known")
        return
    for session in recorded.sessions[1:]:
        if facts := list(differing_facts(recorded.sessions[0], session)):
            what = ", ".join(fact for _, fact in facts)
            yield Cause(FACTS[facts[0][0]], f"the recorded run itself changed at step {session.first_step}: {what}")
    seen = dict.fromkeys(fact for session in found.sessions for fact in differing_facts(recorded.sessions[0], session))
    order = list(FACTS)
    yield from (Cause(FACTS[name], fact) for name, fact in sorted(seen, key=lambda item: order.index(item[0])))


def differing_facts(recorded: Session, found: Session) -> Iterator[tuple[str, str]]:
    """(field of a session, how it differs)."""
    for name in FACTS:
        ours, theirs = getattr(recorded, name), getattr(found, name)
        if ours == theirs:
            continue
        if isinstance(ours, list):
            lacking, more = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
            texts = [
                f"{what} {', '.join(flags)}" for what, flags in (("without", lacking), ("also with", more)) if flags
            ]
            yield name, f"{name}: here {'; '.join(texts)}"
        elif isinstance(ours, dict):
            for key in sorted(ours.keys() | theirs.keys()):
                if ours.get(key) != theirs.get(key) and key not in FIELDS_OF_THEIR_OWN:
                    yield name, f"{key}: recorded {ours.get(key, 'not set')}, here {theirs.get(key, 'not set')}"
        else:
            yield name, f"{name}: recorded {ours}, here {theirs}"
