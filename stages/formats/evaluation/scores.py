"""Scores of benchmarks: of code problems by running programs, of tasks by lm-evaluation-harness, and of your own.

`score` writes verdicts and pass@k, `harness` metrics and answers; the card shows both reports. A stage of your own that
writes `Measurements` to `reports/NAME.json`, with the file among its own plots and among `card`'s deps in dvc.yaml, has
its table in the card and its entries in the Hub's model-index.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, Field

from stages.formats.reports import REPORTS, Report, read_json, write_lines

VERDICTS = Path("data/verdicts.jsonl")
SCORE_REPORT = Path("reports/score.json")
HARNESS_REPORT = Path("reports/harness.json")
HARNESS_SAMPLES = Path("data/harness.jsonl")

SampleResult: TypeAlias = Literal["passed", "assertion", "exception", "syntax", "timeout", "memory", "died"]
"""assertion: an AssertionError. exception: any other. syntax: no valid Python. timeout: wall-clock or processor time.
memory: more than allowed. died: its process ended before the program did, or was killed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one program."""

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
    """Over problems; null for fewer than ten."""


class SetScore(BaseModel, frozen=True, extra="forbid"):
    """The score of one set of problems: those whose task_id is the same up to the slash, or that have no slash."""

    problems: int
    problems_sha256: str
    samples: int
    results: dict[str, int]
    """Result -> samples; results that did not occur are left out. Empty if nothing was run."""
    left_out: dict[str, str]
    """task_id -> how its own solution failed on this machine. Such a problem does not count for pass@k."""
    pass_at_k: dict[str, PassAtK]
    """k -> pass@k. Empty if nothing was run, or every problem is left out."""


class ScoreReport(Report):
    """The samples that were scored, the result, and everything that it depends on."""

    path: ClassVar[Path] = SCORE_REPORT
    stage: ClassVar[str] = "score"

    ran: bool
    """False: `score.run_generated_code` is, so the samples were only counted."""
    sets: dict[str, SetScore]
    samples: int
    programs: int
    """Distinct programs that were run; equal ones are run once."""
    isolation: str
    """The sandbox of a candidate; `none: not run` if nothing was run."""
    problems_sha256: str
    completions_sha256: str
    python: str
    """The version that ran the programs."""
    settings: dict[str, int | float]
    """Seed and draws of the bootstrap, and the limits of a candidate."""
    convention: str
    """How the score was computed, in prose."""


def write_verdicts(verdicts: Iterable[SampleVerdict]) -> None:
    """Write one verdict a line, in the order given."""
    write_lines(VERDICTS, "".join(f"{verdict.model_dump_json()}\n" for verdict in verdicts))


TaskMetrics: TypeAlias = dict[str, dict[str, float | None]]
"""Task or group -> metric -> value; null if it is not a number."""


class TaskReceipt(BaseModel, frozen=True, extra="forbid"):
    """The exact inputs of a task's metrics."""

    version: str
    """As the task file states it."""
    config_sha256: str
    """Hash of the resolved task file: prompts, metrics, filters, the source of its functions."""
    documents_sha256: str
    """Hash of the hashes of the documents that were scored, in order."""
    documents: int
    """Scored; fewer than `documents_in_task` under a limit."""
    documents_in_task: int
    num_fewshot: int
    requests: int
    """Texts that the model was asked about."""
    requests_cut: int
    """Longer than the model's window, which then lacks the beginning: the instructions or the first examples."""


class ScoredWith(BaseModel, frozen=True, extra="forbid"):
    """The model, settings and libraries of all tasks."""

    weights_sha256: str
    context_length: int
    """Tokens that the model reads at once."""
    seed: int
    bootstrap_resamples: int
    versions: dict[str, str]
    """Library -> version: lm-eval, and what computes with the model."""


class HarnessReport(Report):
    """Metrics by task or group, with their uncertainty and the tasks' receipts.

    A metric is named as lm-eval names it; after a comma comes the filter of the answers that it was computed from, if
    the task has any (`exact_match,strict-match`).
    """

    path: ClassVar[Path] = HARNESS_REPORT
    stage: ClassVar[str] = "harness"

    harness: TaskMetrics
    stderr: dict[str, dict[str, float]]
    """The standard errors that lm-eval computes."""
    tasks: dict[str, TaskReceipt]
    scored_with: ScoredWith | None
    """Null if no task was asked for: nothing was scored."""


def write_harness_samples(samples: Iterable[dict[str, Any]]) -> None:
    """Write `data/harness.jsonl`, one sample a line."""
    lines = [json.dumps(sample, sort_keys=True, ensure_ascii=False) + "\n" for sample in samples]
    write_lines(HARNESS_SAMPLES, "".join(lines))


class TableMetric(BaseModel, frozen=True, extra="forbid"):
    """One number of a table."""

    label: str
    """As people read it."""
    unit: str = ""
    value: float | None
    """Null if it is not a number."""
    interval_95: tuple[float, float] | None = None
    over: int
    """The number of documents, problems or questions behind the value."""


class Measurements(Report):
    """The report of an evaluation that the card does not know: it says itself what it measured, and in what."""

    stage: ClassVar[str] = "card"  # which runs after all of them

    format: Literal["measurements"] = "measurements"
    title: str
    """The title of the card's section: the evaluation's name."""
    data_set: str
    """The data set, as the Hub names it; else a name of one's own."""
    counted: str
    """The items that a metric is computed over, in the plural: `documents`."""
    convention: str
    """How the metrics were computed, in prose."""
    weights_sha256: str = Field(min_length=1)
    """The weights of the model that was measured."""
    versions: dict[str, str]
    """Versions of the libraries that computed the metrics."""
    metrics: dict[str, TableMetric]
    """By name."""


def read_measurements(folder: Path = REPORTS) -> dict[Path, Measurements]:
    """The reports of this kind in a folder: those that say so.

    Raises UserError that names a report that is no JSON, or the first field that is missing or wrong.
    """
    found = {}
    for report in sorted(folder.glob("*.json")):
        content = read_json(report)
        if isinstance(content, dict) and content.get("format") == "measurements":
            found[report] = Measurements.read(report)
    return found
