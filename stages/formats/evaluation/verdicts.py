"""Verdicts on completions, `data/verdicts.jsonl`, and `reports/score.json`. `score` writes them,
publish reads the report."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from pydantic import BaseModel

from stages.formats.reports import Report, write_lines

VERDICTS = Path("data/verdicts.jsonl")
SCORE_REPORT = Path("reports/score.json")

SampleResult: TypeAlias = Literal[
    "passed",
    "assertion",
    "exception",
    "syntax",
    "timeout",
    "memory",
    "died",
]
"""assertion: an AssertionError. exception: any other. syntax: no valid Python. timeout: wall-clock or processor time.
memory: more than allowed. died: its process ended before the program did, or was killed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one program did."""

    result: SampleResult
    exception: str = ""
    """The exception's type, of `exception` and `syntax`."""


class SampleVerdict(BaseModel, frozen=True, extra="forbid"):
    """The verdict on one sample."""

    task_id: str
    sample: int
    result: SampleResult
    exception: str


class PassAtK(BaseModel, frozen=True, extra="forbid"):
    """The probability that one of k samples passes, its mean over the problems."""

    value: float
    interval_95: tuple[float, float] | None
    """By bootstrap over problems; null for a single problem."""


class SetScore(BaseModel, frozen=True, extra="forbid"):
    """The score of one set of problems: those whose task_id is the same up to the slash, or that have no slash."""

    problems: int
    problems_sha256: str
    samples: int
    results: dict[str, int]
    """Result -> samples; results that did not occur are left out. Empty where nothing was run."""
    left_out: dict[str, str]
    """task_id -> how its own solution failed on this machine. Such a problem does not count for pass@k."""
    pass_at_k: dict[str, PassAtK]
    """k -> pass@k. Empty if nothing was run, or every problem is left out."""


class ScoreReport(Report):
    """What was scored, with what result, and what the result depends on."""

    path: ClassVar[Path] = SCORE_REPORT
    stage: ClassVar[str] = "score"
    in_receipt: ClassVar[tuple[str, ...]] = ("ran", "settings")

    ran: bool
    """False: `score.run_generated_code` is, so the samples were only counted."""
    sets: dict[str, SetScore]
    samples: int
    programs: int
    """Distinct programs that were run; equal ones are run once."""
    isolation: str
    """What a candidate ran in; `none: not run` where nothing was run."""
    problems_sha256: str
    completions_sha256: str
    weights_sha256: str
    """Of the model that wrote the completions."""
    python: str
    """The version that ran the programs."""
    settings: dict[str, int | float]
    """Seed and draws of the bootstrap, and the limits of a candidate."""
    convention: str
    """How the score was computed, in prose."""


def write_verdicts(verdicts: Iterable[SampleVerdict]) -> None:
    """Write one verdict a line, in the order given."""
    write_lines(VERDICTS, "".join(f"{verdict.model_dump_json()}\n" for verdict in verdicts))
