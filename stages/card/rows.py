"""The card's numbers: one `Row` each, for the card's tables and for the Hub's model-index."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from huggingface_hub import EvalResult

from stages.card.inputs import HELD_OUT, CardInputs
from stages.formats.evaluation.generation import Generation
from stages.formats.evaluation.report import MIN_DOCUMENTS, Evaluation, HeldOutMetrics, Interval, score_interval
from stages.formats.evaluation.scores import HarnessReport, Measurements, ScoreReport, SetScore
from stages.formats.pages import in_digits

TASK_TYPE = "text-generation"

METRICS = {"bits_per_byte": "bits per byte", "loss": "loss (nats per token)", "perplexity": "perplexity"}

PUBLISHED = {"HumanEval": {164}, "MBPP": {974, 500, 427, 257}}
"""Public benchmarks: the name in a task_id -> possible numbers of problems (MBPP: all and the test split, of the full
and the sanitized set). The number matters because any file in MBPP's format has its names."""


@dataclass(frozen=True, slots=True)
class Row:
    """A number: a row of a table and, if it has `fields`, an entry of the model-index."""

    labels: tuple[str, ...]
    """The first cells."""
    value: float | None
    """None if it is not a finite number."""
    interval: Interval | None = None
    counts: tuple[str, ...] = ()
    """The last cells: sample sizes."""
    sign: Literal["", "+"] = ""
    """`+` for a difference."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The fields of `EvalResult` besides the value; `metric_name` without the interval."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table's row."""
        value = "none" if self.value is None else in_digits(self.value, self.sign)
        return (*self.labels, value, self._ends(), *self.counts)

    def entries(self) -> Iterator[EvalResult]:
        """Yield the entry of the model-index. The metric's name includes the interval, for which there is no field."""
        if self.fields and self.value is not None:
            interval = f", 95 % interval {self._ends()}" if self.interval else ""
            fields: dict[str, Any] = {**self.fields, "metric_name": self.fields["metric_name"] + interval}
            yield EvalResult(task_type=TASK_TYPE, metric_value=self.value, **fields)

    def _ends(self) -> str:
        return " to ".join(in_digits(end, self.sign) for end in self.interval or ())


def model_index(inputs: CardInputs) -> list[EvalResult]:
    """The model-index entries of all rows."""
    rows = [*held_out(inputs), *code_generation(inputs), *benchmarks(inputs.harness)]
    for report in inputs.measurements.values():
        rows += measured(report)
    return [entry for row in rows for entry in row.entries()]


def held_out(inputs: CardInputs) -> Iterator[Row]:
    """Yield the metrics of the validation split, then those of compressors on it."""
    evaluation, yardstick = inputs.evaluation, inputs.yardstick
    data_set = {"dataset_type": HELD_OUT, "dataset_name": "held-out documents", "dataset_split": "validation"}
    for name, title in METRICS.items():
        interval = getattr(evaluation.interval_95, name)
        fields = {**data_set, "metric_type": name, "metric_name": title}
        yield Row((title,), getattr(evaluation, name), interval, fields=fields)
    for name, title in (("ppmd", "PPMd"), ("xz", "xz -9")):
        yield Row((f"{title} after the training text (bits per byte)",), yardstick.bits_per_byte[name])
        yield Row((f"{title} cold (bits per byte)",), yardstick.bits_per_byte_cold[name])


def per_source(evaluation: HeldOutMetrics) -> Iterator[Row]:
    """Yield bits per byte of each held-out source."""
    intervals = evaluation.interval_95.bits_per_byte_per_source
    for name, value in sorted(evaluation.bits_per_byte_per_source.items()):
        yield Row((name,), value, intervals.get(name))


def further_sets(evaluation: Evaluation) -> Iterator[Row]:
    """Yield bits per byte of each of `evaluate.sets`."""
    for name, metrics in sorted(evaluation.sets.items()):
        yield Row((name,), metrics.bits_per_byte, metrics.interval_95.bits_per_byte, (f"{metrics.documents:,}",))


def baselines(evaluation: HeldOutMetrics) -> Iterator[Row]:
    """Yield the difference from each of `evaluate.baselines`."""
    for name, baseline in sorted(evaluation.compared.items()):
        labels = (name, in_digits(baseline.bits_per_byte))
        yield Row(labels, baseline.difference, baseline.difference_interval_95, sign="+")


def code_generation(inputs: CardInputs) -> Iterator[Row]:
    """Yield pass@k of each set of problems, with the model-index names that are usual on the Hub."""
    for name, scores in sorted(inputs.score.sets.items()):
        source = problems_from(scores, inputs.generation)
        for k in sorted(map(int, scores.pass_at_k)):
            score, each = scores.pass_at_k[str(k)], f"{scores.samples // scores.problems:,}"
            fields = {
                "task_name": "Code Generation",
                "dataset_type": name if is_published(name, scores) or not source else source,
                "dataset_name": problem_set_name(name, scores),
                "metric_type": f"pass@{k}",
                "metric_name": f"pass@{k} ({each} samples of each problem, {drawn(inputs.generation)})",
            }
            labels, counts = (name, f"pass@{k}"), (scored(scores), each)
            yield Row(labels, score.value, score.interval_95, counts, fields=fields)


def problems_from(scores: SetScore, generation: Generation) -> str:
    """The file or data set that contains exactly these problems; empty if there is none."""
    receipt = generation.receipts.problem_sets.get(scores.problems_sha256)
    return receipt.name if receipt else ""


def scored(scores: SetScore) -> str:
    """The number of problems behind pass@k, with the total if some are left out."""
    return f"{scores.problems - len(scores.left_out):,}" + (f" of {scores.problems:,}" if scores.left_out else "")


def problem_set_name(name: str, scores: SetScore) -> str:
    """The name of a set of code problems in the card."""
    return f"{name} ({scored(scores)} problems)"


def is_published(name: str, scores: SetScore) -> bool:
    """True if these are all problems of a public benchmark, by name and number."""
    return scores.problems in PUBLISHED.get(name, ()) and not scores.left_out


def unpublished(report: ScoreReport) -> str:
    """The sets that are not public benchmarks, separated by commas."""
    sets = sorted(report.sets.items())
    return ", ".join(problem_set_name(name, scores) for name, scores in sets if not is_published(name, scores))


def drawn(generation: Generation) -> str:
    """The settings with which problems were sampled."""
    sampling = generation.receipts.sampling["problems"]
    return f"temperature {sampling['temperature']:g}, top-p {sampling['top_p']:g}"


def benchmarks(report: HarnessReport) -> Iterator[Row]:
    """Yield the metrics of each task or group. A group has no document count; its intervals assume ten documents.

    Only completely scored tasks are in the model-index, where the Hub compares them with other models.
    """
    for name, metrics in sorted(report.harness.items()):
        task, counts = report.tasks.get(name), ("", "")
        whole = task is not None and task.documents == task.documents_in_task
        if task:
            limit = "" if whole else f" of {task.documents_in_task:,}"
            counts = (f"{task.documents:,}{limit}", str(task.num_fewshot))
        for metric, value in sorted(metrics.items()):
            error, interval = report.stderr.get(name, {}).get(metric), None
            if error is not None and value is not None:
                interval = score_interval(value, error, task.documents if task else MIN_DOCUMENTS)
            title = f"{metric} ({counts[1]}-shot, lm-evaluation-harness)"
            fields = {"dataset_type": name, "dataset_name": name, "metric_type": metric, "metric_name": title}
            yield Row((name, metric), value, interval, counts, fields=fields if whole else {})


def measured(report: Measurements) -> Iterator[Row]:
    """Yield the metrics of a custom report."""
    for name, metric in report.metrics.items():
        title = f"{metric.label} ({metric.unit})" if metric.unit else metric.label
        fields = {"dataset_type": report.data_set, "dataset_name": report.title}
        fields |= {"metric_type": name, "metric_name": title}
        yield Row((metric.label, metric.unit), metric.value, metric.interval_95, (f"{metric.over:,}",), fields=fields)
