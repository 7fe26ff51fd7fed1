"""The model card: front matter for the Hub, text from a template, and a picture of the curves."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from huggingface_hub import ModelCardData

from stages.card.inputs import CardInputs
from stages.card.params import CardParams, Destination
from stages.card.rows import (
    TASK_TYPE,
    Row,
    baselines,
    benchmarks,
    code_generation,
    drawn,
    further_sets,
    held_out,
    measured,
    model_index,
    per_source,
    problems_from,
    unpublished,
)
from stages.formats.curves import Panel, draw_curves, read_curves
from stages.formats.evaluation.generation import Sample
from stages.formats.pages import Markdown, filled_template
from stages.formats.reports import CURVES_FOLDER
from stages.formats.revision.provenance import CARD, CURVES_PICTURE, step_name
from stages.formats.sources import by_license, by_source
from stages.formats.tokens import read_of_corpus
from stages.formats.training import SourceShare
from stages.runtime.hub import HUB_COMMIT
from stages.runtime.section import flatten

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
"""Property shown on the card -> its names in configs of transformers."""


def render_card(params: CardParams, destination: Destination, inputs: CardInputs, folder: Path) -> None:
    """Write the card and its picture to `folder`. The same inputs give the same bytes."""
    text = filled_card(params, destination, inputs, with_curves=draw_picture(folder / CURVES_PICTURE))
    (folder / CARD).write_text(text, encoding="utf-8")


def draw_picture(target: Path) -> bool:
    """Draw the training's curves. Returns False if no loss was recorded."""
    names = {"training": "training_loss", "held out": "validation_loss"}
    files = {label: CURVES_FOLDER / f"{name}.tsv" for label, name in names.items()}
    losses = {label: points for label, file in files.items() for points in read_curves(file).values()}
    rates = read_curves(CURVES_FOLDER / "learning_rate.tsv")
    panels = [Panel("loss", "nats per token", losses), Panel("learning rate", "", rates)]
    if losses:
        target.write_bytes(draw_curves([panel for panel in panels if panel.curves]))
    return bool(losses)


def metadata(params: CardParams, destination: Destination, inputs: CardInputs) -> ModelCardData:
    """The card's front matter. `widget` holds the prompt of the example, which `publish` copies to its receipt."""
    prompt = example_prompt(params, inputs)
    base_model = HUB_COMMIT.fullmatch(str(inputs.training_params.get("start_from")))
    return ModelCardData(
        language=list(params.language),
        license=params.license,
        datasets=inputs.data_sets or None,
        library_name="transformers",
        pipeline_tag=TASK_TYPE,
        tags=list(params.tags),
        base_model=base_model["repository"] if base_model else None,
        model_name=destination.name,
        widget=[{"text": prompt}] if prompt else None,
        eval_results=model_index(inputs),
    )


def filled_card(params: CardParams, destination: Destination, inputs: CardInputs, *, with_curves: bool) -> str:
    """The text of README.md, which shows `curves.png` if `with_curves`."""
    filters = (by_license, by_source, drawn, params_on_one_line, read_of_corpus, step_name, verdict)
    functions = (by_share, hyper_parameters, problem_sets, sizes, sorted, unpublished)
    tables = (baselines, benchmarks, code_generation, further_sets, held_out, measured, per_source)
    return filled_template(
        Path(__file__).with_name("card.md.jinja"),
        {function.__name__: function for function in filters}
        | {"fmt": format, "json": lambda text: Markdown(json.dumps(text, ensure_ascii=False))},
        **{function.__name__: function for function in functions},
        **{function.__name__: rows_of(function) for function in tables},
        texts=params,
        publish=destination,
        inputs=inputs,
        metadata=metadata(params, destination, inputs).to_yaml(),
        with_curves=with_curves,
        prompt=example_prompt(params, inputs),
        citation_key="".join(filter(str.isalnum, destination.name)),
    )


def rows_of(numbers: Callable[[Any], Iterator[Row]]) -> Callable[[Any], list[tuple[str, ...]]]:
    """A function for the template that returns the cells of a table's rows."""
    return lambda source: [row.cells for row in numbers(source)]


def params_on_one_line(values: Mapping[str, Any]) -> str:
    """Nested parameters on one line."""
    return ", ".join(f"{name}: {format_value(value)}" for name, value in flatten(values).items())


def format_value(value: Any) -> str:
    """Format a value for readers: thousands separators, commas in lists, `none` for null."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(format_value, value)) or "none"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def example_prompt(params: CardParams, inputs: CardInputs) -> str:
    """The publisher's prompt, else the first words of a held-out document; empty if there is neither.

    Lines that begin with a dash are skipped, because a command line would parse them as options.
    """
    lines = (line.strip() for sample in inputs.samples for line in sample.signature.splitlines())
    line = next((line for line in lines if line and line[0] != "-"), "")
    return params.prompt or next(iter(wrap(line, 60, break_on_hyphens=False)), "")


def sizes(inputs: CardInputs) -> Iterator[tuple[str, str]]:
    """Yield the sizes that the config states; those left at the architecture's default are omitted."""
    yield "parameters", format_value(inputs.training.parameters)
    for title, names in ARCHITECTURE.items():
        value = next((inputs.config[name] for name in names if inputs.config.get(name) is not None), None)
        trained = inputs.training_params.get("sequence_length", value)
        if title == "context (tokens)" and value and trained != value:
            yield title, f"{value}, trained at {trained}"
        elif value is not None:
            yield title, str(value) if isinstance(value, int) and not isinstance(value, bool) else format_value(value)


def verdict(sample: Sample) -> str:
    """Describe a completion without running it; may be empty."""
    notes = [] if sample.parses is None else ["parses" if sample.parses else "does not parse"]
    if not sample.body.strip():
        notes.append("the model wrote nothing")
    elif not sample.finished:
        notes.append("cut off")
    return "; ".join(notes)


def problem_sets(inputs: CardInputs) -> Iterator[tuple[str, str, str]]:
    """Yield rows of problem set, the source of its problems, and their hash."""
    for name, scores in sorted(inputs.score.sets.items()):
        yield name, problems_from(scores, inputs.generation), scores.problems_sha256


def hyper_parameters(section: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of parameter and value, without nulls and without parameters that the weights do not depend on."""
    not_computing = ("evaluation_sequences", "export_steps")
    values = flatten({name: value for name, value in section.items() if name not in not_computing})
    return [(name, format_value(value)) for name, value in values.items() if value is not None]


def by_share(mixture: Mapping[str, SourceShare]) -> list[tuple[str, ...]]:
    """Rows of source, tokens, share and epochs."""
    return [
        (source, f"{share.tokens:,}", f"{share.share:.2%}", f"{share.epochs:.2f}")
        for source, share in sorted(mixture.items())
    ]
