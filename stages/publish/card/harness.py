"""The card's benchmarks: results of lm-evaluation-harness, as a table and as entries of the Hub's model-index."""

from collections.abc import Iterator

from huggingface_hub import EvalResult

from stages.formats.evaluation.harness import HarnessReport
from stages.formats.markdown import table


def benchmarks(report: HarnessReport) -> str:
    """A row for each metric of each task and group; nothing where none was asked for."""
    if report.scored_with is None:
        return ""
    rows = [
        (
            name,
            metric,
            "none" if value is None else f"{value:g}",
            uncertainty(report, name, metric),
            *counts(report, name),
        )
        for name, metrics in sorted(report.harness.items())
        for metric, value in sorted(metrics.items())
    ]
    return (
        f"## Benchmarks\n\n{table(('task', 'metric', 'value', '95 % interval', 'documents', 'few-shot'), rows)}\n"
        f"By lm-evaluation-harness {report.scored_with.versions['lm_eval']}, within "
        f"{report.scored_with.context_length:,} tokens. Intervals: value ± 1.96 standard errors as lm-eval computes "
        "them, else a bootstrap over documents. A result over some documents of a task compares with no published one. "
        "The hashes of each task's file and documents, and the seed: `reports/harness_receipt.json` of the project.\n"
    )


def uncertainty(report: HarnessReport, name: str, metric: str) -> str:
    """The 95 % interval of a metric, where it has one."""
    if interval := report.interval_95.get(name, {}).get(metric):
        return "{:g} to {:g}".format(*interval)
    error, value = report.stderr.get(name, {}).get(metric), report.harness[name][metric]
    return "" if error is None or value is None else f"{value - 1.96 * error:.4g} to {value + 1.96 * error:.4g}"


def counts(report: HarnessReport, name: str) -> tuple[str, str]:
    """How many documents of a task were scored, of how many, and the few-shot examples; empty for a group."""
    task = report.tasks.get(name)
    if task is None:
        return "", ""
    limited = f" of {task.documents_in_task:,}" if task.documents < task.documents_in_task else ""
    return f"{task.documents:,}{limited}", str(task.num_fewshot)


def model_index(report: HarnessReport) -> Iterator[EvalResult]:
    """The metrics of tasks that were scored whole: the Hub shows them next to those of other models."""
    for name, task in sorted(report.tasks.items()):
        for metric, value in sorted(report.harness[name].items()):
            if value is not None and task.documents == task.documents_in_task:
                between = uncertainty(report, name, metric)
                interval = f", 95 % interval {between}" if between else ""
                yield EvalResult(
                    task_type="text-generation",
                    dataset_type=name,
                    dataset_name=name,
                    metric_type=metric,
                    metric_name=f"{metric} ({task.num_fewshot} examples, lm-evaluation-harness){interval}",
                    metric_value=value,
                )
