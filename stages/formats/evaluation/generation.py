"""The generation report: what a model wrote, at a glance, and what it was written with. generate writes it, publish
reads it."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from stages.formats.evaluation.reading import read_report, read_with_receipt, receipt_path, write_with_receipt

GENERATE_REPORT = Path("reports/generate.json")
LOOKS = Path("data/looks.csv")
"""Of each sample: whether it parses and compiles, what it repeats, what it shares with the training data."""


class _Report(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SampleCounts(_Report):
    """How many completions of held-out headers parse."""

    functions: int
    parsed: int
    parsed_share: float | None
    """Null where no header was completed, or the language has no grammar."""
    cut_off: int
    """Completions that had left neither the function nor the document after `max_new_tokens`."""


class Looks(_Report):
    """Measurements of texts that need no run of them; null where there are none."""

    texts: int
    parsed_share: float | None
    """Prompt and completion together parse."""
    compiled_share: float | None
    """They compile; nothing is run."""
    repeated_share: float | None
    """Mean over the texts: of a text's 4-grams of tokens, the share that occurred before in it (seq-rep-4, Welleck et
    al. 2020, arXiv:1908.04319)."""
    longest_shared_median: float | None
    """Tokens of the longest passage of a text that occurs in the training data: the median over the texts."""
    longest_shared_maximum: int | None
    """The same of the text with the longest."""
    ended: dict[str, int]
    """Why the texts ended -> how many."""


class ProblemSetReceipt(_Report):
    """Which problems were completed."""

    name: str
    """The file, or the data set and its revision."""
    problems: int


class Receipts(_Report):
    """What the texts depend on."""

    weights_sha256: str
    problem_sets: dict[str, ProblemSetReceipt]
    """By the sha256 of the problems. Of a list of objects DVC would draw a plot."""
    seed: int
    """Of the stage; each sample's own is in its row."""
    width: int
    prompts_cut: int | None = None
    """Texts of whose prompt the model read only the end, as it reads no more; null in reports of earlier versions."""
    sampling: dict[str, dict[str, int | float]]
    """Headers, problems -> temperature, top_p, max_new_tokens."""
    versions: dict[str, str]
    """Library -> version."""


class GenerationReceipt(_Report):
    """The receipt's file."""

    receipts: Receipts


class Generation(_Report):
    """The report."""

    samples: SampleCounts
    headers: Looks
    problems: Looks
    receipts: Receipts


def write_generation(generation: Generation) -> None:
    """Write `reports/generate.json` and its receipt."""
    write_with_receipt(GENERATE_REPORT, generation, ["receipts"])


def read_generation(path: Path = GENERATE_REPORT) -> Generation:
    """Read a report. Raises UserError that names the first field that is missing or wrong."""
    return read_with_receipt(path, Generation, "generate")


def read_generation_receipts(path: Path = GENERATE_REPORT) -> Receipts:
    """The receipts of a report alone; the same errors."""
    return read_report(receipt_path(path), GenerationReceipt, "generate").receipts
