"""Formats and table rows with which the model card's template is filled, besides the reports themselves."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.card.inputs import CardInputs
from stages.card.params import CardParams, Destination
from stages.formats.evaluation.generation import Generation, Sample
from stages.formats.evaluation.report import FEWEST, Interval, score_interval
from stages.formats.evaluation.scores import HarnessReport, PassAtK, ScoreReport, SetScore
from stages.formats.pages import Markdown, filled_template
from stages.formats.revision.provenance import run_name, step_name
from stages.formats.sources import by_license, by_source
from stages.formats.tokens import read_of_corpus

TEMPLATE = Path(__file__).with_name("card.md.jinja")

PROMPT_CHARACTERS = 60
"""The most characters of a held-out document in the prompt."""

PUBLISHED = {"HumanEval": {164}, "MBPP": {974, 500, 427, 257}}
"""Problem sets for which others report pass@k: the name in their problems' task_id -> possible numbers of problems
(MBPP: all and the test split, of the whole and of the sanitized set). A file in MBPP's format has its names too."""

ARCHITECTURE = {
    "architecture": ("architectures", "model_type"),
    "layers": ("n_layer", "num_hidden_layers", "num_layers"),
    "width": ("n_embd", "hidden_size", "d_model"),
    "attention heads": ("n_head", "num_attention_heads", "num_heads"),
    "key-value heads": ("num_key_value_heads",),
    "width of the feed-forward layers": ("n_inner", "intermediate_size", "ffn_dim"),
    "activation": ("activation_function", "hidden_act"),
    "context (tokens)": ("n_positions", "max_position_embeddings"),
    "vocabulary (tokens)": ("vocab_size",),
    "input and output embeddings shared": ("tie_word_embeddings",),
    "dtype of the weights": ("dtype", "torch_dtype"),
}
"""Property that a reader looks for -> its names in the configurations of transformers."""


def filled_card(
    params: CardParams, destination: Destination, inputs: CardInputs, metadata: str, *, with_curves: bool
) -> str:
    """README.md with this YAML at its head. With curves it shows `curves.png`."""
    formats = (between, by_license, by_source, drawn, problems_from, read_of_corpus, run_name, one_line, scored, shown)
    functions = (benchmarks, by_share, flat, pass_at_k, sizes, sorted, unpublished)
    return filled_template(
        TEMPLATE,
        {one.__name__: one for one in (*formats, step_name, verdict)}
        | {"fmt": format, "json": lambda text: Markdown(json.dumps(text, ensure_ascii=False))},
        **{one.__name__: one for one in functions},
        texts=params,
        publish=destination,
        inputs=inputs,
        metadata=metadata,
        with_curves=with_curves,
        prompt=example_prompt(params, inputs),
        citation_key="".join(filter(str.isalnum, destination.name)),
    )


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of each leaf of nested parameters, in the given order."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def one_line(values: Mapping[str, Any]) -> str:
    """Nested parameters on one line."""
    return ", ".join(f"{name}: {shown(value)}" for name, value in flat(values))


def shown(value: Any) -> str:
    """A value as a reader expects it: numbers with separators, lists with commas, `none` for null."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def between(interval: Interval | None, digits: str = "g") -> str:
    """An interval in words; empty if there is none."""
    return " to ".join(format(end, digits) for end in interval or ())


def example_prompt(params: CardParams, inputs: CardInputs) -> str:
    """The publisher's, else the beginning of a line of a held-out document; empty if there is neither.

    No line that begins with a dash: on a command line it would be an option.
    """
    lines = (line.strip() for sample in inputs.samples for line in sample.signature.splitlines())
    return params.prompt or next((first_words(line) for line in lines if line and line[0] != "-"), "")


def first_words(line: str) -> str:
    """At most `PROMPT_CHARACTERS` of a line, in whole words if it has several."""
    if len(line) <= PROMPT_CHARACTERS:
        return line
    words, _, _ = line[: PROMPT_CHARACTERS + 1].rpartition(" ")
    return words.rstrip() or line[:PROMPT_CHARACTERS]


def sizes(inputs: CardInputs) -> Iterator[tuple[str, str]]:
    """The sizes that the configuration states; those left to the architecture's default are missing."""
    yield "parameters", shown(inputs.training["parameters"])
    for title, names in ARCHITECTURE.items():
        value = next((inputs.config[name] for name in names if inputs.config.get(name) is not None), None)
        trained = inputs.training_params.get("sequence_length", value)
        if title == "context (tokens)" and value and trained != value:
            yield title, f"{value}, trained at {trained}"
        elif value is not None:
            yield title, str(value) if isinstance(value, int) and not isinstance(value, bool) else shown(value)


def pass_at_k(report: ScoreReport) -> list[tuple[str, SetScore, int, PassAtK]]:
    """Set of code problems, its score, k and pass@k, in this order."""
    return [
        (name, found, k, found.pass_at_k[str(k)])
        for name, found in sorted(report.sets.items())
        for k in sorted(map(int, found.pass_at_k))
    ]


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


def benchmarks(report: HarnessReport) -> Iterator[tuple[str, ...]]:
    """One row per metric of each task or group; the document count is blank for groups."""
    for name, metrics in sorted(report.harness.items()):
        task = report.tasks.get(name)
        counts = ("", "")
        if task:
            limited = f" of {task.documents_in_task:,}" if task.documents < task.documents_in_task else ""
            counts = (f"{task.documents:,}{limited}", str(task.num_fewshot))
        for metric, value in sorted(metrics.items()):
            shown_value = "none" if value is None else f"{value:g}"
            yield name, metric, shown_value, between(interval(report, name, metric), ".4g"), *counts


def interval(report: HarnessReport, name: str, metric: str) -> Interval | None:
    """A metric's 95 % interval, from lm-eval's standard error; a group, which has no document count, as over ten."""
    documents = report.tasks[name].documents if name in report.tasks else FEWEST
    error, value = report.stderr.get(name, {}).get(metric), report.harness[name][metric]
    return None if error is None or value is None else score_interval(value, error, documents)


def verdict(sample: Sample) -> str:
    """Describe a completion without running it."""
    notes = [] if sample.parses is None else ["parses" if sample.parses else "does not parse"]
    if not sample.body.strip():
        notes.append("the model wrote nothing")
    elif not sample.finished:
        notes.append("cut off")
    return "; ".join(notes) or "no grammar to check"


def by_share(mixture: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of source, tokens, share and epochs."""
    return [
        (source, f"{of['tokens']:,}", f"{of['share']:.2%}", f"{of['epochs']:.2f}")
        for source, of in sorted(mixture.items())
    ]
