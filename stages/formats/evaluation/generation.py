"""Completions of held-out headers and of code problems that a model wrote, and the report on both.

generate writes all of it; score runs the completions of problems, card shows the samples and the report.

data/samples.json          completions of held-out headers
data/completions.jsonl     of code problems: a line per sample, sorted by task_id and sample, so that the file does not
                           depend on the order in which samples were finished
reports/generate.json      both at a glance, and what they were written with
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from pydantic import BaseModel

from stages.formats.reports import Report, read_json, write_json, write_lines
from stages.formats.rows import read_json_lines

GENERATE_REPORT = Path("reports/generate.json")
TEXT_STATISTICS = Path("data/looks.csv")
"""A row per sample: whether it parses, repeats itself, and shares text with the training data."""
SAMPLES = Path("data/samples.json")
SAMPLES_HTML = Path("data/samples.html")
COMPLETIONS = Path("data/completions.jsonl")

FinishReason: TypeAlias = Literal["eos", "stop", "length"]
"""Why a text ended: the model ended the document, a stop string was written, or the tokens were used up."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion of the header of a held-out function or paragraph."""

    source: str
    """The package, repository or data set of the held-out document."""
    path: str
    """The path of the document in its source."""
    line: int
    """The line of the header, counted from 1."""
    prompt: str
    """The text that the model read: lines of the file, then the signature."""
    signature: str
    body: str
    """The text that the model wrote, in whole lines; begins with the end of the signature's line."""
    seed: int
    """The seed of this sample alone."""
    finished: bool
    """The model continued to what follows the function or ended the document; otherwise its tokens were used up."""
    parses: bool | None
    """Signature and body together parse; None for a language without a grammar."""

    @property
    def name(self) -> str:
        """Source, path and line."""
        return f"{self.source} {self.path}:{self.line}"


def write_samples(samples: Sequence[Sample]) -> None:
    """Write `data/samples.json`."""
    write_json(SAMPLES, [asdict(sample) for sample in samples])


def read_samples() -> list[Sample]:
    """Read `data/samples.json`."""
    return [Sample(**values) for values in read_json(SAMPLES)]


class Completion(BaseModel, frozen=True, extra="forbid", strict=True):
    """One sample of one problem."""

    task_id: str
    """The problem's."""
    sample: int
    """The number of the sample among the problem's, counted from 0."""
    seed: int
    """The seed of this sample alone."""
    completion: str
    """The text that the model wrote after the prompt, up to the stop string."""
    ended: FinishReason

    @property
    def sort_key(self) -> tuple[str, int]:
        """The order in the file."""
        return (self.task_id, self.sample)


def completions_text(completions: Iterable[Completion]) -> str:
    """The file's text."""
    ordered = sorted(completions, key=lambda one: one.sort_key)
    return "".join(f"{completion.model_dump_json()}\n" for completion in ordered)


def write_completions(completions: Iterable[Completion], path: Path = COMPLETIONS) -> None:
    """Write the file, sorted."""
    write_lines(path, completions_text(completions))


def read_completions(path: Path = COMPLETIONS) -> list[Completion]:
    """Read the file. Raises UserError that names the first line that is not a completion."""
    return read_json_lines(path, Completion, "run `dvc repro generate`")


class SampleCounts(BaseModel, frozen=True, extra="forbid"):
    """Counts of the completions of held-out headers."""

    functions: int
    """Completions in a language with a grammar; paragraphs of text have none."""
    parsed: int
    parsed_share: float | None
    """The share of the functions that parse; null if there are none."""
    cut_off: int
    """Completions that had left neither the function nor the document after `max_new_tokens`."""


class StatisticsSummary(BaseModel, frozen=True, extra="forbid"):
    """Measurements of texts that need no run of them; null if there are none."""

    texts: int
    parsed_share: float | None
    """Prompt and completion together parse."""
    repeated_share: float | None
    """Mean over the texts: of a text's 4-grams of tokens, the share that occurred before in it (seq-rep-4, Welleck et
    al. 2020, arXiv:1908.04319)."""
    longest_shared_median: float | None
    """Tokens of the longest passage of a text that occurs in the training data: the median over the texts."""
    longest_shared_maximum: int | None
    """The same of the text with the longest."""
    ended: dict[str, int]
    """Why the texts ended -> how many."""


class ProblemSetReceipt(BaseModel, frozen=True, extra="forbid"):
    """The problems that were completed."""

    name: str
    """The file."""
    problems: int


class Receipts(BaseModel, frozen=True, extra="forbid"):
    """The inputs and settings that the texts depend on."""

    weights_sha256: str
    problem_sets: dict[str, ProblemSetReceipt]
    """By the sha256 of the problems. Of a list of objects DVC would draw a plot."""
    seed: int
    """The seed of the stage; each sample's own is in its row."""
    width: int
    prompts_cut: int
    """Texts whose prompt is longer than the model reads: it read only the end."""
    sampling: dict[str, dict[str, int | float]]
    """Headers, problems -> temperature, top_p, max_new_tokens."""
    versions: dict[str, str]
    """Library -> version."""


class Generation(Report):
    """The report."""

    path: ClassVar[Path] = GENERATE_REPORT
    stage: ClassVar[str] = "generate"

    samples: SampleCounts
    headers: StatisticsSummary
    problems: StatisticsSummary
    receipts: Receipts
