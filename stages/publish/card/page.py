"""The model card: what the model is, how to use it, how good it is, what it was made from.

Names, headers and model output come from the corpus and are escaped; the text of `publish` is the publisher's Markdown.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from stages.formats.evaluation.report import Evaluation
from stages.formats.evaluation.samples import Sample
from stages.formats.markdown import code_block, escape, table
from stages.formats.revision.model_index import HELD_OUT, HELD_OUT_NAME
from stages.publish.card.code_generation import code_generation, pass_at_k_entries
from stages.publish.card.data import data
from stages.publish.card.harness import benchmarks, model_index
from stages.publish.card.model import architecture, loading
from stages.publish.card.training import accepted, citation, contact, reproduction, training
from stages.publish.card.values import FEWEST, HUB_COMMIT, between, named
from stages.publish.inputs import Inputs
from stages.publish.params import PublishParams

SAMPLES_SHOWN = 5

METRICS = {"bits_per_byte": "bits per byte", "loss": "loss (nats per token)", "perplexity": "perplexity"}
COMPRESSORS = {"gzip_9": "gzip -9", "xz_9": "xz -9"}


def write_card(params: PublishParams, inputs: Inputs, *, with_curves: bool = False) -> str:
    """README.md as the Hub reads it: YAML front matter, then Markdown. With curves it shows `curves.png`."""
    sections = (
        introduction(params, inputs),
        loading(params, inputs),
        intended_use(params, inputs.validation.sources),
        architecture(inputs),
        evaluation(inputs),
        code_generation(inputs.score, inputs.generation),
        benchmarks(inputs.harness),
        samples(inputs.samples),
        data(inputs),
        training(inputs, with_curves),
        reproduction(params, inputs),
        accepted(inputs.accepted),
        citation(params),
        contact(params),
    )
    return f"---\n{metadata(params, inputs).to_yaml()}\n---\n\n" + "\n".join(filter(None, sections))


def metadata(params: PublishParams, inputs: Inputs) -> ModelCardData:
    """The card's front matter, with the metrics as the Hub's model-index."""
    values, intervals = inputs.evaluation.model_dump(), inputs.evaluation.interval_95.model_dump()
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=HELD_OUT,
            dataset_name=HELD_OUT_NAME,
            dataset_split="validation",
            metric_type=name,
            metric_name=named(title, intervals[name], inputs.evaluation.documents),
            metric_value=values[name],
        )
        for name, title in METRICS.items()
    ]
    base_model = HUB_COMMIT.fullmatch(str(inputs.recorded.training.get("start_from")))
    return ModelCardData(
        language=list(params.language),
        license=params.license,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=list(params.tags),
        base_model=base_model["repository"] if base_model else None,
        model_name=params.name,
        eval_results=[*results, *pass_at_k_entries(inputs.score, inputs.generation), *model_index(inputs.harness)],
    )


def introduction(params: PublishParams, inputs: Inputs) -> str:
    """Title, description, the sizes in one sentence, who made it, and its licence."""
    recorded = inputs.recorded.training
    start = f" from the weights of {escape(recorded['start_from'])}" if recorded.get("start_from") else " from scratch"
    by = f"Made by {', '.join(params.authors)}. " if params.authors else ""
    return (
        f"# {params.name}\n\n{params.description}\n\n"
        f"A causal language model of type {escape(str(inputs.config['model_type']))} with "
        f"{inputs.training['parameters']:,} parameters and a vocabulary of {inputs.config['vocab_size']:,} tokens, "
        f"trained{start if recorded else ''} on {inputs.train.total.bytes:,} bytes of text. "
        f"{by}The licence of the weights: {params.license or 'none stated'}.\n"
    )


def intended_use(params: PublishParams, sources: Mapping[tuple[str, str], Any]) -> str:
    """What the model is for, and what it should not be used for."""
    count = len({source for source, _ in sources})
    evaluated = (
        f"It was evaluated on documents of {count:,} {'source' if count == 1 else 'sources'}. The intervals cover "
        "the choice of documents like these, not other sources, and not the random seed of the training."
    )
    lines = "".join(f"- {line}\n" for line in (*params.limitations, evaluated))
    return f"## Intended use and limitations\n\n{params.intended_use}\n\n{lines}"


def evaluation(inputs: Inputs) -> str:
    """The metrics with their intervals, compressors on the same bytes, and bits per byte of each source."""
    report, counts = inputs.evaluation, inputs.generation.samples
    values, convention = report.model_dump(), inputs.evaluation_receipt.convention
    rows = [
        (title, f"{values[name]:g}", between(values["interval_95"][name], report.documents))
        for name, title in METRICS.items()
    ]
    rows += [
        (f"{title} (bits per byte)", f"{report.compressors_bits_per_byte[name]:g}", "")
        for name, title in COMPRESSORS.items()
    ]
    of_source = report.interval_95.bits_per_byte_per_source
    documents: Counter[str] = Counter()
    for (source, _), amount in inputs.validation.sources.items():
        documents[source] += amount.documents
    per_source = [
        (name, f"{value:g}", between(of_source.get(name), documents[name]))
        for name, value in sorted(report.bits_per_byte_per_source.items())
    ]
    functions = ""
    if counts.parsed_share is not None:
        functions = (
            f"\nOf {counts.functions} held-out function headers, {counts.parsed} were completed to valid Python "
            f"({counts.parsed_share:.0%}). Valid Python is a matter of grammar: none of these was run.\n"
        )
    return (
        f"## Evaluation\n\n{table(('', 'value', '95 % interval'), rows)}\n"
        f"Over {report.documents:,} held-out documents, {report.tokens:,} tokens, {report.bytes:,} bytes. "
        f"{convention}{few(report.documents)}\n\n"
        f"{table(('held-out source', 'bits per byte', '95 % interval'), per_source)}"
        f"{further_sets(report)}{comparisons(report)}{functions}"
    )


def few(documents: int) -> str:
    """Why there is no interval; nothing where there are enough documents for one."""
    return "" if documents >= FEWEST else f" An interval needs at least {FEWEST} documents."


def further_sets(report: Evaluation) -> str:
    """What was measured on other sets than the validation split."""
    rows = [
        (
            name,
            f"{found.bits_per_byte:g}",
            between(found.interval_95.bits_per_byte, found.documents),
            f"{found.documents:,}",
        )
        for name, found in sorted(report.sets.items())
    ]
    return "\n" + table(("further set", "bits per byte", "95 % interval", "documents"), rows) if rows else ""


def comparisons(report: Evaluation) -> str:
    """Other models on the same documents of the validation split."""
    rows = [
        (
            name,
            f"{found.bits_per_byte:g}",
            f"{found.difference:+g}",
            between(found.difference_interval_95, report.documents),
        )
        for name, found in sorted(report.compared.items())
    ]
    heading = ("compared with", "bits per byte", "this model's difference", "95 % interval (paired)")
    return "\n" + table(heading, rows) if rows else ""


def samples(entries: list[Sample]) -> str:
    """The first completions, unedited: they are in random order already."""
    blocks = [
        f"{escape(entry.source)} {escape(entry.path)}, line {entry.line} "
        f"({_verdict(entry)}):\n\n"
        + code_block(entry.signature + entry.body, "text" if entry.parses is None else "python")
        for entry in entries[:SAMPLES_SHOWN]
    ]
    if not blocks:
        return ""
    return (
        "## Samples\n\nPassages of held-out files, completed from their beginning; chosen at random, unedited.\n\n"
        + "\n".join(blocks)
    )


def _verdict(entry: Sample) -> str:
    notes = [] if entry.parses is None else ["parses" if entry.parses else "does not parse"]
    if not entry.body.strip():
        notes.append("the model wrote no body")
    elif not entry.finished:
        notes.append("cut off")
    return "; ".join(notes) or "no grammar to check"
