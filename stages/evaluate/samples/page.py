"""The page that shows completions of held-out function headers, unedited."""

from collections.abc import Sequence

from stages.evaluate.params import SampleParams
from stages.formats.markdown import code_block, escape
from stages.formats.samples import Sample


def samples_page(samples: Sequence[Sample], params: SampleParams) -> str:
    """Markdown: what the model read and what it wrote, for each header."""
    if not samples:
        return "# Samples\n\nNone were asked for, or the held-out documents have no Python functions.\n"
    parsed = sum(sample.parses for sample in samples)
    introduction = (
        "# Samples\n\n"
        "Functions of held-out files, completed from their header by the trained model, chosen at random and shown "
        f"unedited (temperature {params.temperature:g}, top-p {params.top_p:g}, at most {params.max_new_tokens} "
        f"tokens). {parsed} of {len(samples)} are valid Python.\n"
    )
    return introduction + "".join(f"\n{_section(number, item)}" for number, item in enumerate(samples, start=1))


def _section(number: int, sample: Sample) -> str:
    verdict = "parses" if sample.parses else "does not parse"
    end = "" if sample.finished else ", cut off"
    written = sample.body.lstrip("\n") or "(nothing)"
    return (
        f"## {number}. {escape(sample.source)} {escape(sample.path)}, line {sample.line} ({verdict}{end})\n\n"
        f"The model read:\n\n{code_block(sample.prompt)}\n"
        f"It wrote:\n\n{code_block(written)}"
    )
