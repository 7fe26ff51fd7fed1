"""Results as the Hub's benchmarks read them: `.eval_results/*.yaml`, next to the model card.

A benchmark is a data set of the Hub with a leaderboard; the Hub shows these results there and on the model's page. The
format is https://huggingface.co/docs/hub/eval-results, written by the Hub's client (`huggingface_hub.EvalResultEntry`).
Each value is one of the card's head. Publish writes it from there, and a verification compares it with that head again.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.formats.revision.layout import CARD, EVAL_RESULTS
from stages.formats.revision.lock import NO_YAML, DamagedError, Fault, read_yaml
from stages.formats.revision.model_index import head, is_number
from stages.runtime.entry import UserError


def eval_results(benchmarks: Sequence[Mapping[str, str]], card_head: Any) -> dict[str, list[dict[str, Any]]]:
    """Path in the revision -> its entries, of `publish.benchmarks` and the head of the card.

    A file for each benchmark, so that the Hub's refusal of one leaves the others. Raises UserError where the head has
    no such result.
    """
    if not benchmarks:
        return {}
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml  # half a second, for those who ask for it

    files = {}
    for benchmark in benchmarks:
        dataset, metric = found(card_head, benchmark["result"], benchmark["metric"])
        entry = EvalResultEntry(
            dataset_id=benchmark["dataset"],
            task_id=benchmark["task_id"],
            value=metric["value"],
            dataset_revision=dataset.get("revision"),
            notes=metric.get("name"),
        )
        name = f"{benchmark['dataset'].replace('/', '--')}--{benchmark['task_id']}"
        files[f"{EVAL_RESULTS}/{name}.yaml"] = eval_result_entries_to_yaml([entry])
    return files


def found(card_head: Any, result: str, metric: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A data set and a metric of the model-index. Raises UserError that names those that are there."""
    entries = [
        (each["dataset"], one)
        for model in (card_head or {}).get("model-index") or []
        for each in model["results"]
        for one in each["metrics"]
    ]
    for dataset, one in entries:
        if (dataset["type"], one["type"]) == (result, metric) and is_number(one["value"]):
            return dataset, one
    known = ", ".join(f"{metric} of {dataset}" for dataset, metric in ((d["type"], m["type"]) for d, m in entries))
    raise UserError(
        f"params.yaml: publish.benchmarks: the card has no {metric} of {result}; it has: {known or 'no results'}. A "
        "task that was scored in part (harness.limit) is not among them"
    )


def is_eval_result(path: str) -> bool:
    """Whether a file of a revision is one of these, by its path there."""
    return path.startswith(f"{EVAL_RESULTS}/")


def edited_eval_results(folder: Path, files: Mapping[str, str], publish: Mapping[str, Any]) -> Iterator[Fault]:
    """Files of a revision (`files`: those that its index lists) that do not say what the head of its card does.

    `publish` is the section of the parameters that it was published with. Whether that head is honest is for
    `contradictions` to say.
    """
    present = {path for path in files if is_eval_result(path) and (folder / path).is_file()}
    benchmarks = publish.get("benchmarks") or []
    if not present and not benchmarks:
        return
    try:
        expected = eval_results(benchmarks, head((folder / CARD).read_text(encoding="utf-8")))
    except (UserError, *NO_YAML, OSError):
        yield Fault(CARD, "contradicts", "its head has not the results that publish.benchmarks names")
        return
    for path in sorted(present | expected.keys()):
        if path not in expected:
            yield Fault(path, "unknown")
        elif path not in present:
            yield Fault(path, "missing", "publish.benchmarks names it")
        elif not says(folder, path, expected[path]):
            yield Fault(path, "contradicts", f"{CARD} has another result")


def says(folder: Path, path: str, expected: list[dict[str, Any]]) -> bool:
    """Whether a file has these entries and nothing else."""
    try:
        return bool(read_yaml(folder, path) == expected)
    except DamagedError:
        return False
