"""Metrics by lm-evaluation-harness, and its per-sample file. harness writes them, publish reads the metrics."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from pydantic import BaseModel

from stages.formats.reports import Report, write_lines

HARNESS_REPORT = Path("reports/harness.json")
HARNESS_SAMPLES = Path("data/harness.jsonl")

TaskMetrics: TypeAlias = dict[str, dict[str, float | None]]
"""Task or group -> metric -> value; null where it is not a number."""


class TaskReceipt(BaseModel, frozen=True, extra="forbid"):
    """What exactly a task's metrics were computed from."""

    version: str
    """As the task file states it."""
    config_sha256: str
    """Of the resolved task file: prompts, metrics, filters, the source of its functions."""
    documents_sha256: str
    """Of the hashes of the documents that were scored, in order."""
    documents: int
    """Scored; fewer than `documents_in_task` under a limit."""
    documents_in_task: int
    num_fewshot: int
    requests: int
    """Texts that the model was asked about."""
    requests_cut: int
    """Longer than the model's window, which then lacks the beginning: the instructions or the first examples."""


class ScoredWith(BaseModel, frozen=True, extra="forbid"):
    """What all tasks were scored with."""

    weights_sha256: str
    context_length: int
    """Tokens that the model reads at once."""
    seed: int
    bootstrap_resamples: int
    versions: dict[str, str]
    """Library -> version: lm-eval, and what computes with the model."""


class HarnessReport(Report):
    """Metrics by task or group, with their uncertainty and the tasks' receipts.

    A metric is named as lm-eval names it; behind a comma is the filter of the answers that it was computed from, where
    the task has any (`exact_match,strict-match`).
    """

    path: ClassVar[Path] = HARNESS_REPORT
    stage: ClassVar[str] = "harness"
    in_receipt: ClassVar[tuple[str, ...]] = ("tasks", "scored_with")

    harness: TaskMetrics
    stderr: dict[str, dict[str, float]]
    """The standard errors that lm-eval computes."""
    exported_steps: dict[int, TaskMetrics]
    """Step -> the same of its model, if `harness.exported_steps` asks for it."""
    tasks: dict[str, TaskReceipt]
    scored_with: ScoredWith | None
    """Null where no task was asked for: nothing was scored."""


def write_harness_samples(samples: Iterable[dict[str, Any]]) -> None:
    """Write `data/harness.jsonl`, one sample a line."""
    lines = [json.dumps(sample, sort_keys=True, ensure_ascii=False) + "\n" for sample in samples]
    write_lines(HARNESS_SAMPLES, "".join(lines))
