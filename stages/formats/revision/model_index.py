"""The numbers at the head of a model card (the Hub's model-index), compared with the reports that they are from.

Some are also results of the Hub's benchmarks, `.eval_results/*.yaml`. A benchmark is a data set of the Hub with a
leaderboard; the Hub shows these results there and on the model's page. The format is
https://huggingface.co/docs/hub/eval-results, written by the Hub's client (`huggingface_hub.EvalResultEntry`). Each
value is one of the head: publish writes it from there, and a verification compares the two.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from stages.formats.evaluation.generation import GENERATE_REPORT
from stages.formats.evaluation.harness import HARNESS_REPORT
from stages.formats.evaluation.measurements import Measurements, read_measurements
from stages.formats.evaluation.report import EVALUATE_RECEIPT, EVALUATE_REPORT
from stages.formats.evaluation.verdicts import SCORE_REPORT
from stages.formats.model_folder import MODEL
from stages.formats.reports import REPORTS, read_json, receipt_path
from stages.formats.revision.lock import NO_YAML, DamagedError, Fault, read_yaml
from stages.formats.revision.provenance import CARD, EVAL_RESULTS, EVALUATION, EVALUATION_RECEIPT, record_path
from stages.runtime.entry import UserError, first_line

COPIES = {EVALUATE_REPORT: EVALUATION, EVALUATE_RECEIPT: EVALUATION_RECEIPT}
"""Report of the project -> its path in a revision, where that is not below `record/`."""

HELD_OUT = "held-out"
"""The type of data set of the model's own evaluation."""

HELD_OUT_NAME = "held-out documents"


@dataclass(frozen=True, slots=True)
class DataSet:
    """What the reports have of a data set."""

    type: str
    """As the card names it: of a benchmark its task; of code problems their set, or the place that they are from."""
    name: str
    """As the card shows it."""
    values: Mapping[str, Any]
    """Metric -> value."""


def contradictions(folder: Path, weights: str) -> Iterator[str]:
    """What the head of the card says of the evaluation of these weights (sha256) and its reports do not."""
    if not (folder / CARD).is_file():
        return
    try:
        results = list(results_of(head((folder / CARD).read_text(encoding="utf-8"))))
    except (*NO_YAML, UnicodeDecodeError) as error:
        yield f"its head is no model-index ({first_line(error)})"
        return
    try:
        measurements = read_measurements(folder / record_path(REPORTS))
        known = list(data_sets(folder, measurements))
        measured = {path: mapping(read_report(folder, path), *keys).get(WEIGHTS) for path, keys in OF_WEIGHTS.items()}
    except (UserError, ValueError, OSError, RecursionError) as error:
        yield f"a report cannot be read ({first_line(error)})"
        return
    measured |= {receipt_path(path): report.weights_sha256 for path, report in measurements.items()}
    for path, sha256 in measured.items():
        if sha256 not in (None, "", weights):  # empty where the completions came from elsewhere
            yield f"{COPIES.get(path, record_path(REPORTS / path.name))} was measured on other weights"
    for kind, name, metric, value in results:
        # The Hub's client joins results of one type under the first one's name.
        same = [each for each in known if each.type == kind]
        recorded = [each.values[metric] for each in same if is_number(each.values.get(metric))]
        if value is None or value not in recorded:
            found = ", ".join(map(str, recorded)) or "no number"
            yield f"{metric} of {kind} is {value}, and the reports of the revision have {found}"
        elif name not in {each.name for each in same}:
            yield f"{metric} of {kind} is called that of {name}, and in the reports it is of {same[0].name}"


WEIGHTS = "weights_sha256"

OF_WEIGHTS = {
    EVALUATE_RECEIPT: ("models", MODEL.as_posix()),
    receipt_path(GENERATE_REPORT): ("receipts",),
    receipt_path(SCORE_REPORT): (),
    receipt_path(HARNESS_REPORT): ("scored_with",),
}
"""Receipt of one of the pipeline's own evaluations -> the keys under which it names the weights that were measured."""

HEAD = re.compile(r"[\s\ufeff]*---\n(.*?)\n---[ \t]*(\n|$)", re.DOTALL)
"""As the Hub and its client find it (`huggingface_hub.repocard.REGEX_YAML_BLOCK`): what they read is compared."""


def head(card: str) -> Any:
    """The YAML between the first two lines of dashes; None where there is none."""
    found = HEAD.match(card)
    return YAML(typ="safe", pure=True).load(StringIO(found[1])) if found else None


def results_of(values: Any) -> Iterator[tuple[str, str, str, float | None]]:
    """(type of data set, its name, metric, value) of each result; no value where it is no number."""
    for model in (values or {}).get("model-index") or []:
        for result in model["results"]:
            for metric in result["metrics"]:
                value = metric["value"]
                yield (
                    str(result["dataset"]["type"]),
                    str(result["dataset"]["name"]),
                    str(metric["type"]),
                    float(value) if is_number(value) else None,  # of an integer of any length no message can be made
                )


def data_sets(folder: Path, measurements: Mapping[Path, Measurements]) -> Iterator[DataSet]:
    """All that the reports of a revision have values of."""
    known = list(known_data_sets(partial(read_report, folder)))
    yield from known
    for other in measurements.values():
        if not is_taken(other, known):
            yield DataSet(other.data_set, other.title, {name: metric.value for name, metric in other.metrics.items()})


def read_report(folder: Path, path: Path) -> Any:
    """A report of the project, as a revision has it; None where it has none."""
    file = folder / COPIES.get(path, record_path(path))
    return read_json(file) if file.is_file() else None


def known_data_sets(read: Callable[[Path], Any]) -> Iterator[DataSet]:
    """What the pipeline's own evaluations have values of; `read` gives a report of the project, or None."""
    yield DataSet(HELD_OUT, HELD_OUT_NAME, mapping(read(EVALUATE_REPORT)))
    for task, values in mapping(read(HARNESS_REPORT), "harness").items():
        yield DataSet(task, task, mapping(values))
    hashes = mapping(read(receipt_path(SCORE_REPORT)), "sets")
    origins = mapping(read(receipt_path(GENERATE_REPORT)), "receipts", "problem_sets")
    for name, found in mapping(read(SCORE_REPORT), "sets").items():
        origin = mapping(origins, str(mapping(hashes, name).get("problems_sha256"))).get("name")
        values = {f"pass@{k}": mapping(score).get("value") for k, score in mapping(found, "pass_at_k").items()}
        problems = mapping(found).get("problems")
        title = problem_set_name(name, problems) if isinstance(problems, int) else name
        kinds = {name, origin, origin.partition("@")[0]} if isinstance(origin, str) else {name}
        yield from (DataSet(kind, title, values) for kind in kinds)


def is_taken(measured: Measurements, known: Iterable[DataSet]) -> bool:
    """Whether a report calls its data set as one of the pipeline's own evaluations does: it could forge its numbers.

    By the type alone: results of one type are shown under one name, not the report's title.
    """
    return measured.data_set in {each.type for each in known}


def problem_set_name(name: str, problems: int) -> str:
    """How the card calls a set of code problems."""
    return f"{name} ({problems:,} problems)"


def mapping(values: Any, *keys: str) -> Mapping[str, Any]:
    """The mapping at these keys; an empty one where there is none."""
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values if isinstance(values, dict) else {}


def is_number(value: Any) -> bool:
    """Whether this is a number; for Python `True` is 1."""
    return isinstance(value, int | float) and not isinstance(value, bool)


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
    known = ", ".join(f"{one['type']} of {dataset['type']}" for dataset, one in entries)
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
