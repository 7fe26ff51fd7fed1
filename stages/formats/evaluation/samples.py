"""Samples: completions of held-out headers. generate writes them, publish shows them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from stages.formats.reports import read_json, write_json

SAMPLES = Path("data/samples.json")
SAMPLES_HTML = Path("data/samples.html")


@dataclass(frozen=True, slots=True)
class Sample:
    """What the model wrote for the header of a held-out function or paragraph."""

    source: str
    """The package, repository or data set of the held-out document."""
    path: str
    """Of the document in its source."""
    line: int
    """Of the header, counted from 1."""
    prompt: str
    """What the model read: lines of the file, then the signature."""
    signature: str
    body: str
    """What the model wrote, in whole lines; begins with the end of the signature's line."""
    seed: int
    """Of this sample alone."""
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
