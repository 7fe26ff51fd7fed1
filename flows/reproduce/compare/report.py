"""What a reproduction says: lines in the terminal while it works, and a page of HTML that can go with a paper."""

import datetime
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.reproduce.commands import Commands
from flows.reproduce.compare.verdict import BIT_IDENTICAL, FACTS, FIELDS_OF_THEIR_OWN, NOT_REPRODUCED, Verdict
from flows.reproduce.environment import Interpreter
from flows.reproduce.revision import Revision
from flows.reproduce.segment import Segment
from stages.formats.model_folder import MODEL, weight_files, weights_sha256
from stages.formats.pages import filled_template
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution, Session
from stages.formats.revision.layout import RECORDED_LOCK
from stages.formats.revision.segment import SegmentReport
from stages.runtime.entry import UserError

TEMPLATE = Path(__file__).with_name("report.html.jinja")

NOTHING = "-"
"""In a table: not known."""

WIDTH = 12
"""Of a step's name in the terminal."""


@dataclass
class Story:
    """What was checked so far; each step is printed as it happens."""

    revision: Revision
    commands: Commands
    steps: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def say(self, name: str, text: str) -> None:
        """A step that is done."""
        self.steps.append((name, text))
        print(f"{name:<{WIDTH}} {text}", flush=True)

    def note(self, text: str) -> None:
        """Something that is not as recorded, before anything is computed."""
        self.notes.append(text)
        print(f"{'':<{WIDTH}} note: {text}", flush=True)


def verdict_lines(verdict: Verdict) -> list[str]:
    """The comparison and the verdict for the terminal."""
    width = max((len(stage.name) for stage in verdict.stages), default=0)
    lines = [""]
    for stage in verdict.stages:
        lines.append(f"{stage.name:<{width}}  {stage.state}")
        lines += [f"{'':<{width}}    {difference}" for difference in stage.differences]
        lines += [f"{'':<{width}}    input: {changed.fact}" for changed in stage.different_inputs]
    for one in verdict.sets:
        ends = f" [{one.published_interval[0]:g}, {one.published_interval[1]:g}]" if one.published_interval else ""
        lines.append(f"{one.name}: published {one.published:g} bits per byte{ends}, found {one.found:g}: {one.reason}")
    lines += ["", f"{verdict.result}: {verdict.explanation}"]
    if verdict.restored:
        lines.append(f"restored by their hashes, not computed: {', '.join(verdict.restored)}")
    lines += [f"not compared: {one}" for one in verdict.not_compared]
    if verdict.first is not None:
        stage, difference = verdict.first
        what = f"{stage.name}: {difference}" if difference else f"{stage.name} did not run"
        lines.append(f"first difference: {what}")
    lines += [f"likely cause: {cause.kind}: {cause.fact}" for cause in verdict.causes]
    return lines


def segment_result(found: SegmentReport) -> str:
    """Whether a segment was reproduced."""
    return BIT_IDENTICAL if found.verdict == "equal" else NOT_REPRODUCED


def segment_lines(revision: Revision, segment: Segment, found: SegmentReport) -> list[str]:
    """The verdict on a segment for the terminal."""
    lines = ["", f"{segment_result(found)}: steps {segment.first} to {segment.last} of the training"]
    return lines + [f"not compared: {one}" for one in outside_of_segment(revision)]


def verdict_page(story: Story, checkout: Path, interpreter: Interpreter, outcome: Verdict | SegmentReport) -> str:
    """The page of a reproduction, or of a segment of its training."""
    revision = story.revision
    found = Execution.find(checkout / TRAIN_EXECUTION)
    said: dict[str, Any] = {"verdict": None, "segment": None, "found_weights": None}
    if isinstance(outcome, Verdict):
        said |= {"result": outcome.result, "explanation": outcome.explanation, "not_compared": outcome.not_compared}
        said |= {"verdict": outcome, "found_weights": found_weights(checkout)}
    else:
        said |= {"result": segment_result(outcome), "explanation": outcome.reason, "segment": outcome}
        said |= {"not_compared": outside_of_segment(revision)}
    return filled_template(
        TEMPLATE,
        {},
        revision=revision,
        provenance=revision.provenance,
        steps=story.steps,
        notes=story.notes,
        commands=story.commands.shown,
        minutes=f"{story.seconds / 60:.1f} minutes" if story.seconds >= 90 else f"{story.seconds:.0f} seconds",
        machine=interpreter.machine,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        facts=machine_rows(
            revision.execution.sessions if revision.execution else [], found.sessions if found else [], interpreter
        ),
        **said,
    )


def outside_of_segment(revision: Revision) -> list[str]:
    """What of a revision the check of a segment says nothing of."""
    weights = [file.name for file in weight_files(revision.folder)]
    made = [path for path in revision.published if path not in weights]
    said = [path for path in revision.provenance.files if path not in revision.published and path not in weights]
    return [
        f"computed by no step of this segment, and compared with {RECORDED_LOCK} alone: {', '.join(made)}",
        f"compared with the rest of the record alone: {', '.join(said)}",
    ]


def found_weights(checkout: Path) -> str | None:
    """The sha256 of the rebuilt weights; None where there are none."""
    try:
        return weights_sha256(checkout / MODEL)
    except UserError:
        return None


def machine_rows(recorded: list[Session], found: list[Session], interpreter: Interpreter) -> list[tuple[str, str, str]]:
    """(fact, recorded, here) of the training's execution."""
    old, new = (sessions[0] if sessions else None for sessions in (recorded, found or recorded))
    rows = [(label, shown(old, name), shown(new, name)) for name, (_, label) in FACTS.items() if label]
    libraries = sorted({*(old.versions if old else {}), *(new.versions if new else {})})
    here = new.versions if new else {"python": interpreter.machine.python, **interpreter.machine.versions}
    return rows + [
        (name, old.versions.get(name, NOTHING) if old else NOTHING, here.get(name, NOTHING)) for name in libraries
    ]


def shown(session: Session | None, name: str) -> str:
    """A field of a session in a table."""
    if session is None:
        return NOTHING
    value = getattr(session, name)
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in sorted(value.items()) if k not in FIELDS_OF_THEIR_OWN) or "none"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
