"""Whether the recomputed steps led to what is on record, and if not, what could be the cause."""

import sys

from stages.formats.revision.execution import Session
from stages.formats.revision.segment import Compared, Difference, SegmentReport
from stages.train.segment.plan import Segment
from stages.train.segment.task import Found

SET_FROM_THE_RECORD = {"first_step", "last_step", "launch", "environment"}


def judge(segment: Segment, found: list[Found]) -> SegmentReport:
    """The verdict, from what each piece of the segment led to."""
    contents = {step: sha256 for piece in found for step, sha256 in piece.contents.items()}
    compared = [
        Compared(what=f"checkpoint of step {step}", recorded=segment.record.checkpoints[step], found=sha256)
        for step, sha256 in sorted(contents.items())
    ]
    if found[-1].weights is not None:
        compared.append(Compared(what="weights", recorded=segment.record.weights_sha256, found=found[-1].weights))
    wrong = next((one for one in compared if one.recorded != one.found), None)
    differences = [
        difference
        for piece, own in zip(segment.pieces, found, strict=False)
        for difference in differing_facts(piece.session, own.session)
    ]
    steps = f"steps {segment.first + 1} to {segment.last}"
    if wrong is None:
        reason = f"{steps}, computed again, lead to the recorded state, bit for bit"
    else:
        causes = ", ".join(f"{one.fact} ({one.recorded} recorded, {one.here} here)" for one in differences)
        reason = f"{steps}, computed again, do not lead to the recorded state; the first difference is in the "
        reason += f"{wrong.what}. " + (
            f"Likely causes: {causes}"
            if causes
            else "No recorded fact of the execution differs: the record or a checkpoint was changed, or runs cannot be "
            "repeated bit for bit on this hardware"
        )
    return SegmentReport(
        verdict="different" if wrong else "equal",
        reason=reason,
        from_step=segment.first,
        to_step=segment.last,
        compared=compared,
        differences=differences,
        seconds=0.0,
    )


def differing_facts(recorded: Session, here: Session) -> list[Difference]:
    """In which facts two executions differ; of lists only what the other one lacks."""
    before, now = (one.model_dump(exclude=SET_FROM_THE_RECORD) for one in (recorded, here))
    flags = set(recorded.cpu_flags) ^ set(here.cpu_flags)
    for values, session in ((before, recorded), (now, here)):
        values["cpu_flags"] = " ".join(sorted(flags & set(session.cpu_flags)))
        values |= {f"versions.{name}": version for name, version in values.pop("versions").items()}
    return [
        Difference(fact=fact, recorded=_shown(before.get(fact)), here=_shown(now.get(fact)))
        for fact in sorted(before.keys() | now.keys())
        if before.get(fact) != now.get(fact)
    ]


def _shown(value: object) -> str:
    return str(value) if value not in (None, "", {}) else "none"


def print_verdict(report: SegmentReport) -> None:
    """The verdict in lines; why it could not be checked goes to standard error."""
    for one in report.compared:
        outcome = "equal" if one.recorded == one.found else f"different, {one.found[:16]} now"
        print(f"{one.what}: {one.recorded[:16]} recorded, {outcome}")
    stream = sys.stderr if report.verdict == "cannot" else sys.stdout
    prefix = "error" if report.verdict == "cannot" else report.verdict
    print(f"{prefix}: {report.reason} ({report.seconds:.0f} s)", file=stream, flush=True)
