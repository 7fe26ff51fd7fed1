"""The page that shows completions of held-out headers, unedited."""

from collections.abc import Sequence

from stages.evaluate.generate.params import HeaderParams
from stages.formats.evaluation.generation import Sample
from stages.formats.pages import code_block, escape


def samples_page(samples: Sequence[Sample], params: HeaderParams) -> str:
    """Markdown: what the model read and what it wrote, for each header."""
    if not samples:
        return "# Samples\n\nNone were asked for, or the held-out documents have no headers.\n"
    known = [sample.parses for sample in samples if sample.parses is not None]
    parsed = f" {sum(known)} of {len(known)} parse." if known else ""
    introduction = (
        "# Samples\n\n"
        "Passages of held-out files, completed from their header by the trained model, chosen at random and shown "
        f"unedited (temperature {params.temperature:g}, top-p {params.top_p:g}, at most {params.max_new_tokens} "
        f"tokens).{parsed}\n"
    )
    return introduction + "".join(f"\n{_section(number, item)}" for number, item in enumerate(samples, start=1))


def _section(number: int, sample: Sample) -> str:
    notes = [] if sample.parses is None else ["parses" if sample.parses else "does not parse"]
    notes += [] if sample.finished else ["cut off"]
    details = f" ({', '.join(notes)})" if notes else ""
    written = sample.body.lstrip("\n") or "(nothing)"
    return (
        f"## {number}. {escape(sample.source)} {escape(sample.path)}, line {sample.line}{details}\n\n"
        f"The model read:\n\n{code_block(sample.prompt)}\n"
        f"It wrote:\n\n{code_block(written)}"
    )
