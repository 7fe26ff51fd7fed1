"""The card's benchmarks: results of lm-evaluation-harness, as a table and as entries of the Hub's model-index."""

from collections.abc import Iterator

from huggingface_hub import EvalResult

from stages.formats.evaluation.harness import HarnessReport
from stages.formats.markdown import table
from stages.publish.card.values import FEWEST, between, named


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
    return between(*interval(report, name, metric))


def interval(report: HarnessReport, name: str, metric: str) -> tuple[tuple[float, float] | None, int, str]:
    """Its ends, over how many documents, and the format of a number; of a group it is not known how many."""
    documents = report.tasks[name].documents if name in report.tasks else FEWEST
    if (ends := report.interval_95.get(name, {}).get(metric)) is not None:
        return ends, documents, "g"
    error, value = report.stderr.get(name, {}).get(metric), report.harness[name][metric]
    if error is None or value is None:
        return None, documents, "g"
    return (value - 1.96 * error, value + 1.96 * error), documents, ".4g"


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
                few_shot = f"{task.num_fewshot}-shot, lm-evaluation-harness"
                yield EvalResult(
                    task_type="text-generation",
                    dataset_type=name,
                    dataset_name=name,
                    metric_type=metric,
                    metric_name=named(f"{metric} ({few_shot})", *interval(report, name, metric)),
                    metric_value=value,
                )
