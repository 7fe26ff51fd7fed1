"""The numbers of the card: one `Row` each, for the card's tables and for the Hub's model-index."""

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

COMPRESSOR_TITLES = {"ppmd": "PPMd", "xz": "xz -9"}

PUBLISHED = {"HumanEval": {164}, "MBPP": {974, 500, 427, 257}}
"""Problem sets for which others report pass@k: the name in their problems' task_id -> possible numbers of problems
(MBPP: all and the test split, of the whole and of the sanitized set). A file in MBPP's format has its names too."""


@dataclass(frozen=True, slots=True)
class Row:
    """One number: a row of a table and, if it has `fields`, an entry of the model-index."""

    labels: tuple[str, ...]
    """The first cells."""
    value: float | None
    """None if it is not a number."""
    interval: Interval | None = None
    counts: tuple[str, ...] = ()
    """The last cells: how much the value was measured on."""
    sign: Literal["", "+"] = ""
    """`+` for a difference."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The fields of `EvalResult` besides the value; `metric_name` without the interval."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        value = "none" if self.value is None else in_digits(self.value, self.sign)
        return (*self.labels, value, self._ends(), *self.counts)

    def entries(self) -> Iterator[EvalResult]:
        """The entry of the model-index, which has no field for an interval: the metric's name has it."""
        if self.fields and self.value is not None:
            interval = f", 95 % interval {self._ends()}" if self.interval else ""
            fields: dict[str, Any] = {**self.fields, "metric_name": self.fields["metric_name"] + interval}
            yield EvalResult(task_type=TASK_TYPE, metric_value=self.value, **fields)

    def _ends(self) -> str:
        return " to ".join(in_digits(end, self.sign) for end in self.interval or ())


def model_index(inputs: CardInputs) -> list[EvalResult]:
    """The entries of all rows that have one."""
    rows = [*held_out(inputs), *code_generation(inputs), *benchmarks(inputs.harness)]
    for report in inputs.measurements.values():
        rows += measured(report)
    return [entry for row in rows for entry in row.entries()]


def held_out(inputs: CardInputs) -> Iterator[Row]:
    """The metrics of the validation split, and how well compressors do on it."""
    evaluation, yardstick = inputs.evaluation, inputs.yardstick
    of = {"dataset_type": HELD_OUT, "dataset_name": "held-out documents", "dataset_split": "validation"}
    for name, title in METRICS.items():
        interval = getattr(evaluation.interval_95, name)
        fields = {**of, "metric_type": name, "metric_name": title}
        yield Row((title,), getattr(evaluation, name), interval, fields=fields)
    for name, title in COMPRESSOR_TITLES.items():
        yield Row((f"{title} after the training text (bits per byte)",), yardstick.bits_per_byte[name])
        yield Row((f"{title} cold (bits per byte)",), yardstick.bits_per_byte_cold[name])


def per_source(evaluation: HeldOutMetrics) -> Iterator[Row]:
    """Bits per byte of each held-out source."""
    intervals = evaluation.interval_95.bits_per_byte_per_source
    for name, value in sorted(evaluation.bits_per_byte_per_source.items()):
        yield Row((name,), value, intervals.get(name))


def further_sets(evaluation: Evaluation) -> Iterator[Row]:
    """Bits per byte of each of `evaluate.sets`."""
    for name, found in sorted(evaluation.sets.items()):
        yield Row((name,), found.bits_per_byte, found.interval_95.bits_per_byte, (f"{found.documents:,}",))


def baselines(evaluation: HeldOutMetrics) -> Iterator[Row]:
    """The difference from each of `evaluate.baselines`."""
    for name, found in sorted(evaluation.compared.items()):
        labels = (name, in_digits(found.bits_per_byte))
        yield Row(labels, found.difference, found.difference_interval_95, sign="+")


def code_generation(inputs: CardInputs) -> Iterator[Row]:
    """pass@k of each set of problems. The model-index names it as cards on the Hub do."""
    for name, found in sorted(inputs.score.sets.items()):
        source = problems_from(found, inputs.generation)
        for k in sorted(map(int, found.pass_at_k)):
            score, each = found.pass_at_k[str(k)], f"{found.samples // found.problems:,}"
            fields = {
                "task_name": "Code Generation",
                "dataset_type": name if is_published(name, found) or not source else source,
                "dataset_name": problem_set_name(name, found),
                "metric_type": f"pass@{k}",
                "metric_name": f"pass@{k} ({each} samples of each problem, {drawn(inputs.generation)})",
            }
            labels, counts = (name, f"pass@{k}"), (scored(found), each)
            yield Row(labels, score.value, score.interval_95, counts, fields=fields)


def problems_from(found: SetScore, generation: Generation) -> str:
    """The file or data set whose problems these are; empty if one holds several sets."""
    receipt = generation.receipts.problem_sets.get(found.problems_sha256)
    return receipt.name if receipt else ""


def scored(found: SetScore) -> str:
    """The number of problems behind pass@k, and of how many."""
    return f"{found.problems - len(found.left_out):,}" + (f" of {found.problems:,}" if found.left_out else "")


def problem_set_name(name: str, found: SetScore) -> str:
    """The name of a set of code problems in the card."""
    return f"{name} ({scored(found)} problems)"


def is_published(name: str, found: SetScore) -> bool:
    """True if these are a benchmark's problems, by name and number, and none is left out."""
    return found.problems in PUBLISHED.get(name, ()) and not found.left_out


def unpublished(report: ScoreReport) -> str:
    """The sets that are no benchmark's; empty if all are."""
    return ", ".join(
        problem_set_name(name, found) for name, found in sorted(report.sets.items()) if not is_published(name, found)
    )


def drawn(generation: Generation) -> str:
    """The distribution from which the samples were drawn."""
    sampling = generation.receipts.sampling["problems"]
    return f"temperature {sampling['temperature']:g}, top-p {sampling['top_p']:g}"


def benchmarks(report: HarnessReport) -> Iterator[Row]:
    """The metrics of each task or group; a group has no document count, and its intervals are as over ten.

    Only tasks that were scored whole are in the model-index: the Hub shows them next to those of other models.
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
    """The metrics of a report that says itself what it measured."""
    for name, metric in report.metrics.items():
        title = f"{metric.label} ({metric.unit})" if metric.unit else metric.label
        fields = {"dataset_type": report.data_set, "dataset_name": report.title}
        fields |= {"metric_type": name, "metric_name": title}
        yield Row((metric.label, metric.unit), metric.value, metric.interval_95, (f"{metric.over:,}",), fields=fields)
