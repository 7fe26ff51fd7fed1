"""The record of a run: `.parrotflow/runs/ID.jsonl`, one event a line, in the order in which they happened.

The run appends to it and never waits for a reader. Everything that shows a run reads it: the recorder for Prefect
while the run works (flows/show/recorder.py), `parrotflow ui` afterwards. What the recorder has to tell the run (the
address of its page, a person's approval) comes back the same way, in `ID.replies.jsonl`.
"""

import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RUNS = Path(".parrotflow/runs")
KEPT_RUNS = 50
LONGEST_LINE = 10_000


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened."""

    time: str = field(default_factory=_now)
    """ISO 8601, UTC."""


@dataclass(frozen=True, kw_only=True)
class RecordedStage:
    """What a record says of a stage of the plan."""

    name: str
    state: str
    why: str
    upstream: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """A run has a plan and begins to work."""

    run: str
    pid: int
    options: dict[str, Any]
    stages: tuple[RecordedStage, ...]
    flow_run: str | None = None
    """Prefect's id, where Prefect started this run."""


@dataclass(frozen=True, kw_only=True)
class StageStarted(Event):
    """An attempt at a stage begins."""

    stage: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Lines(Event):
    """Lines that a stage printed, one after the other."""

    stage: str
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Progress(Event):
    """How far a stage is that counts its work."""

    stage: str
    done: int
    total: int


GOOD = ("ran", "unchanged", "restored")
"""The results of a stage that is up to date."""


@dataclass(frozen=True, kw_only=True)
class StageEnded(Event):
    """An attempt at a stage has ended, or the stage was refused without one."""

    stage: str
    result: str
    seconds: float
    message: str = ""
    exit_code: int = 0
    retry_in_seconds: float | None = None
    """Until the next attempt; None where this was the last."""


@dataclass(frozen=True, kw_only=True)
class ApprovalAsked(Event):
    """A stage waits for a person to say yes or no."""

    stage: str


@dataclass(frozen=True, kw_only=True)
class Artifact(Event):
    """Something to show."""

    key: str
    kind: str
    """`markdown` (text), `table` (a list of rows), `link` (an address) or `curves` (figures with their points)."""
    data: Any
    description: str
    stage: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """A run has ended in order."""

    state: str
    """Completed, Refused, Failed or Cancelled."""
    message: str


EVENTS: Mapping[str, type[Event]] = {
    kind.__name__: kind
    for kind in (RunStarted, StageStarted, Lines, Progress, StageEnded, ApprovalAsked, Artifact, RunEnded)
}


class RunRecord:
    """The record of the run that is going on."""

    def __init__(self, folder: Path = RUNS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.run = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        self.path = folder / f"{self.run}.jsonl"
        self._file = self.path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        forget_old_runs(folder)

    def write(self, event: Event) -> None:
        """Append an event."""
        line = json.dumps({"event": type(event).__name__, **asdict(event)}, ensure_ascii=False)
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def parse(line: str) -> Event:
    """The event of a line; fields that this version does not know are left out."""
    values = json.loads(line)
    kind = EVENTS[values.pop("event")]
    known = {item.name for item in fields(kind)}
    if kind is RunStarted:
        values["stages"] = tuple(RecordedStage(**stage) for stage in values["stages"])
    return kind(**{name: value for name, value in values.items() if name in known})


def read_lines(path: Path, offset: int = 0) -> tuple[list[str], int]:
    """The whole lines from a byte on, and the byte after them."""
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        file.seek(offset)
        whole, _, _ = file.read().rpartition(b"\n")
    return whole.decode("utf-8").split("\n") if whole else [], offset + len(whole) + bool(whole)


def recorded_runs(folder: Path = RUNS) -> list[Path]:
    """The records, the oldest first."""
    return sorted(path for path in folder.glob("*.jsonl") if not path.name.endswith(".replies.jsonl"))


def forget_old_runs(folder: Path = RUNS, kept: int = KEPT_RUNS) -> None:
    """Delete the oldest records, so that `kept` remain."""
    for path in recorded_runs(folder)[:-kept]:
        path.unlink(missing_ok=True)
        replies_of(path).unlink(missing_ok=True)


def replies_of(path: Path) -> Path:
    """The file in which the recorder answers the run."""
    return path.with_name(path.name.removesuffix(".jsonl") + ".replies.jsonl")


def reply(path: Path, **values: Any) -> None:
    """Tell the run of a record something."""
    with replies_of(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def replies(path: Path) -> Iterator[dict[str, Any]]:
    """What the run of a record was told so far."""
    yield from map(json.loads, read_lines(replies_of(path))[0])


HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}\b")
SHORTEST_SECRET = 8
"""A shorter value would be found inside words and numbers, and the marks of it would give it away."""


def unhidden(names: Iterable[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """A warning for each of these variables whose value `redactor` leaves where it is."""
    short = [name for name in sorted(names) if 0 < len(environment.get(name, "")) < SHORTEST_SECRET]
    return [
        f"warning: {name} has fewer than {SHORTEST_SECRET} characters, so it is not hidden where a stage prints it"
        for name in short
    ]


def redactor(names: Iterable[str], environment: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """A function that replaces the values of these environment variables, and tokens of the Hub, by their names."""
    values = {environment[name]: name for name in names if len(environment.get(name, "")) >= SHORTEST_SECRET}

    def redact(text: str) -> str:
        for value, name in values.items():
            text = text.replace(value, f"[{name}]")
        return HUB_TOKEN.sub("[token]", text)

    return redact
