"""The model card: what the model is, where it comes from, how good it is, and how to have it again."""

from collections.abc import Iterable, Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from stages.publish.inputs import Amount, Inputs, Side
from stages.publish.params import PublishParams

SAMPLES_SHOWN = 5
ROWS_SHOWN = 50

METRICS = {"bits_per_byte": "bits per byte", "loss": "loss (nats per token)", "perplexity": "perplexity"}
BASELINES = {"gzip_9": "gzip -9", "xz_9": "xz -9"}


def write_card(params: PublishParams, inputs: Inputs, place: str) -> str:
    """README.md as the Hub reads it. `place` is what `from_pretrained` is given."""
    sections = (
        introduction(params, inputs),
        loading(place),
        evaluation(inputs.evaluation),
        samples(inputs.samples),
        data(inputs),
        training(inputs),
        reproduction(),
        accepted(inputs.accepted),
        limitations(inputs),
    )
    return f"---\n{metadata(params, inputs.evaluation).to_yaml()}\n---\n\n" + "\n".join(filter(None, sections))


def metadata(params: PublishParams, evaluation: Mapping[str, Any]) -> ModelCardData:
    """The card's front matter, with the metrics as the Hub's model-index."""
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type="held-out",
            dataset_name="held-out documents",
            dataset_split="validation",
            metric_type=name,
            metric_name=title,
            metric_value=evaluation[name],
        )
        for name, title in METRICS.items()
    ]
    return ModelCardData(
        language=list(params.language),
        license=params.license,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=list(params.tags),
        model_name=params.name,
        eval_results=results,
    )


def introduction(params: PublishParams, inputs: Inputs) -> str:
    """Title, description, and the size of everything in one line."""
    return (
        f"# {params.name}\n\n{params.description}\n\n"
        f"A causal language model of type `{inputs.config['model_type']}` with {inputs.training['parameters']:,} "
        f"parameters and a vocabulary of {inputs.config['vocab_size']:,} tokens, trained on "
        f"{inputs.train.total.bytes:,} bytes of text.\n"
    )


def loading(place: str) -> str:
    """Code that a reader can run."""
    return f"""## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{place}")
model = AutoModelForCausalLM.from_pretrained("{place}")
prompt = tokenizer("def fibonacci(", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=100, do_sample=True)[0]))
```
"""


def evaluation(report: Mapping[str, Any]) -> str:
    """The metrics with their intervals, beside what compressors make of the same bytes."""
    rows = [
        (title, f"{report[name]:g}", "{:g} to {:g}".format(*report["interval_95"][name]))
        for name, title in METRICS.items()
    ]
    rows += [
        (f"{title} (bits per byte)", f"{report['baselines_bits_per_byte'][name]:g}", "")
        for name, title in BASELINES.items()
    ]
    completed = report["samples"]
    functions = ""
    if completed["functions"]:
        functions = (
            f"\nOf {completed['functions']} held-out function headers, {completed['parsed']} were completed to valid "
            f"Python ({completed['parsed_share']:.0%}).\n"
        )
    return (
        f"## Evaluation\n\n{table(('', 'value', '95 % interval'), rows)}\n"
        f"Over {report['documents']:,} held-out documents, {report['tokens']:,} tokens, {report['bytes']:,} bytes. "
        f"{report['convention']}\n{functions}"
    )


def samples(entries: list[dict[str, Any]]) -> str:
    """The first completions as they came: they are in random order already."""
    blocks = [
        f"`{entry['source']}` {entry['path']}, line {entry['line']}"
        f" ({'parses' if entry['parses'] else 'does not parse'}):\n\n" + code_block(entry["signature"] + entry["body"])
        for entry in entries[:SAMPLES_SHOWN]
    ]
    if not blocks:
        return ""
    return (
        "## Samples\n\nFunctions of held-out files, completed from their header; chosen at random, shown as they "
        "came.\n\n" + "\n".join(blocks)
    )


def data(inputs: Inputs) -> str:
    """What the model was trained on and measured on, by licence and by source."""
    dropped = inputs.clean["dropped"]
    left_out = sum(entry["documents"] for entry in dropped.values())
    masked = [f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(inputs.clean["masked"].items()) if count]
    return (
        "## Data\n\n"
        f"{inputs.clean['documents']:,} documents were collected; filters dropped {left_out:,}"
        f"{' (' + ', '.join(sorted(dropped)) + ')' if dropped else ''}. "
        f"{'Masked: ' + ', '.join(masked) + '. ' if masked else ''}"
        f"Trained on {inputs.train.total.documents:,} documents ({inputs.train.tokens:,} tokens), measured on "
        f"{inputs.validation.total.documents:,} ({inputs.validation.tokens:,} tokens).\n\n"
        + side_tables("Trained on", inputs.train)
        + side_tables("Held out", inputs.validation)
    )


def side_tables(title: str, side: Side) -> str:
    """One side's text by licence and by source, the largest first."""
    licenses = {name or "none stated": amount for name, amount in side.licenses.items()}
    sources = {f"{source} {revision}".strip(): amount for (source, revision), amount in side.sources.items()}
    return (
        f"### {title}\n\n{table(('licence', 'documents', 'bytes'), amounts(licenses))}\n"
        f"{table(('source', 'documents', 'bytes'), amounts(sources))}\n"
    )


def amounts(named: Mapping[str, Amount]) -> list[tuple[str, str, str]]:
    """Rows of a table, the largest first; what is too long for a card is summed up in the last."""
    ordered = sorted(named.items(), key=lambda item: (-item[1].bytes, item[0]))
    rows = [(name, f"{amount.documents:,}", f"{amount.bytes:,}") for name, amount in ordered[:ROWS_SHOWN]]
    rest = [amount for _, amount in ordered[ROWS_SHOWN:]]
    if rest:
        documents, size = sum(amount.documents for amount in rest), sum(amount.bytes for amount in rest)
        rows.append((f"{len(rest):,} more", f"{documents:,}", f"{size:,}"))
    return rows


def training(inputs: Inputs) -> str:
    """What training reported."""
    rows = [(name.replace("_", " "), f"{value:,}") for name, value in sorted(inputs.training.items())]
    return f"## Training\n\n{table(('', ''), rows)}"


def reproduction() -> str:
    """How to have the same model again."""
    return """## Reproduce

`provenance.json` beside this card names the git commit, and for each stage its command, its parameters, and the hashes
of what it read and wrote; the library versions, the hardware and the number of threads; and the sha256 of the weights.
Check out that commit, install `requirements.lock` and run `dvc repro`. On the same hardware with the same number of
threads the weights come out the same, bit for bit; elsewhere floating point sums in another order.
"""


def accepted(entries: list[dict[str, Any]]) -> str:
    """What was declared up to date without a run; nothing where nothing was."""
    if not entries:
        return ""
    rows = [
        (
            entry["stage"],
            "; ".join(entry["changes"]),
            "same syntax tree" if entry["same_syntax_tree"] else "a judgement",
            entry["because"],
            f"{entry['by']}, {entry['date']}".lstrip(", "),
        )
        for entry in entries
    ]
    return (
        "## Accepted without a run\n\nThese changes were declared to leave the result as it was.\n\n"
        f"{table(('stage', 'change', 'how far it reaches', 'because', 'by'), rows)}"
    )


def limitations(inputs: Inputs) -> str:
    """What the model should not be taken for."""
    sources = len({source for source, _ in inputs.validation.sources})
    return (
        "## Limitations\n\n"
        "- It continues text by what it has seen. It follows no instructions, and what it writes may be wrong, "
        "insecure or biased.\n"
        "- It may repeat training text word for word; the licences above apply to such text.\n"
        f"- It was measured on documents of {sources:,} {'source' if sources == 1 else 'sources'}. The intervals say "
        "how the figures vary over documents like these; not over other sources, and not over random seeds of the "
        "training.\n"
        "- Valid Python is a matter of grammar: no completion was run.\n"
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; a `|` in a cell stays in the cell."""
    heading = list(head)
    lines = [heading, ["---"] + ["--:"] * (len(heading) - 1)]
    lines += [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code_block(text: str) -> str:
    """A code block whose fence no text within can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}python\n{text.rstrip()}\n{fence}\n"
